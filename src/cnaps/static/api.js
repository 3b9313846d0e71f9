// The server's side of things: the state it holds, and the changes it is asked for.

import { plural, toast } from "./dom.js";
import { send } from "./transport.js";

export let state = null;
const listeners = [];
export const onState = (listener) => listeners.push(listener);
export let uploading = null; // {done, total} while files are on their way

export async function ask(method, path, body) {
  const options = { method };
  if (body instanceof FormData || body instanceof Blob) options.body = body;
  else if (body) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  const response = await send(path, options);
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.error ?? (typeof answer.detail === "string" ? answer.detail : `The server refused (${response.status}).`));
  }
  return response;
}

// Every change goes through here: what goes wrong is said, never swallowed.
export async function change(method, path, body) {
  try {
    return await (await ask(method, path, body)).json();
  } catch (error) {
    toast(error.message, { kind: "bad" });
    return null;
  }
}

export const undo = () => change("POST", "/api/undo");
export const move = (images, place) => change("PATCH", "/api/images", { images, place });

export async function remove(images) {
  await change("DELETE", "/api/images", { images });
  toast(`${plural(images.length, "image")} removed`, { action: "Undo", run: undo });
}

export async function removeClass(entry) {
  await change("DELETE", `/api/classes/${entry.id}`);
  toast(`“${entry.name}” removed; its images are unlabelled now`, { action: "Undo", run: undo });
}

// files: [{file, path}]; place: a class, "test", "pool" or "folders" (each into the class its folder names)
export async function upload(files, place) {
  files = files.filter(({ file }) => !file.name.startsWith(".") && file.name !== "Thumbs.db");
  if (!files.length) return toast("There are no images in it.", { kind: "bad" });
  const sum = { added: 0, known: [], refused: [] };
  const group = Math.random().toString(36).slice(2);
  uploading ??= { done: 0, total: 0, running: 0 }; // of all uploads that are under way
  uploading.total += files.length;
  uploading.running += 1;
  try {
    for (let i = 0; i < files.length; i += 8) {
      const form = new FormData();
      form.append("place", place);
      form.append("group", group);
      for (const { file, path } of files.slice(i, i + 8)) {
        form.append("files", file, file.name);
        form.append("paths", path ?? file.name);
      }
      notify();
      const report = await (await ask("POST", "/api/images", form)).json();
      sum.added += report.added.length;
      sum.known.push(...report.known);
      sum.refused.push(...report.refused);
      uploading.done += Math.min(8, files.length - i);
    }
  } catch (error) {
    toast(error.message, { kind: "bad" });
  }
  uploading.running -= 1;
  if (!uploading.running) uploading = null;
  notify();
  if (sum.refused.length) {
    const first = sum.refused.slice(0, 3).map(({ name, reason }) => `${name}: ${reason}`).join("\n");
    const more = sum.refused.length > 3 ? `\nand ${sum.refused.length - 3} more` : "";
    toast(`${plural(sum.refused.length, "file")} could not be used\n${first}${more}`, { kind: "bad" });
  }
  if (sum.known.length) toast(`${plural(sum.known.length, "image")} ${sum.known.length === 1 ? "was" : "were"} in the project already`);
}

function notify() {
  if (state) for (const listener of listeners) listener(state);
}

// Ask for news for ever; the answer comes when there is some.
export async function follow(offline) {
  for (;;) {
    try {
      const response = await ask("GET", `/api/state?since=${state?.version ?? ""}`);
      state = await response.json();
      offline(false);
      notify();
    } catch {
      offline(true);
      await new Promise((resolve) => setTimeout(resolve, 700));
    }
  }
}
