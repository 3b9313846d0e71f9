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

export const confirm = (images) => change("POST", "/api/right", { images });

export async function remove(images) {
  await change("DELETE", "/api/images", { images });
  toast(`${plural(images.length, "image")} removed`, { action: "Undo", run: undo });
}

export async function removeClass(entry) {
  await change("DELETE", `/api/classes/${entry.id}`);
  toast(`“${entry.name}” removed; its images are unlabelled now`, { action: "Undo", run: undo });
}

// files: [{file, path}]; place: a class, "h" in place of its "c" to hold out, "test", "pool", "folders" (each into the class its folder names) or "held" (the same, held out)
export async function upload(files, place, { quiet = false } = {}) {
  files = files.filter(({ file }) => !file.name.startsWith(".") && file.name !== "Thumbs.db");
  if (!files.length) return toast("There are no images in it.", { kind: "bad" });
  const sum = { added: 0, known: [], moved: [], refused: [] };
  const group = Math.random().toString(36).slice(2);
  uploading ??= { done: 0, total: 0, running: 0 }; // of all uploads that are under way
  uploading.total += files.length;
  uploading.running += 1;
  try {
    for (let i = 0, n; i < files.length; i += n) {
      n = 1; // a request has few files and far less bytes than it may have
      for (let bytes = files[i].file.size; n < 8 && i + n < files.length; n++) {
        bytes += files[i + n].file.size;
        if (bytes > 6e7) break;
      }
      const form = new FormData();
      form.append("place", place);
      form.append("group", group);
      for (const { file, path } of files.slice(i, i + n)) {
        form.append("files", file, file.name);
        form.append("paths", path ?? file.name);
      }
      notify();
      const report = await (await ask("POST", "/api/images", form)).json();
      sum.added += report.added.length;
      sum.known.push(...report.known);
      sum.moved.push(...report.moved);
      sum.refused.push(...report.refused);
      uploading.done += n;
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
  const classNamed = (id) => state.classes.find((entry) => entry.id === id)?.name ?? "a new class";
  const named = (id) => id === "test" ? "the tray" : id === "pool" ? "unlabelled" : id.startsWith("h") ? `${classNamed(`c${id.slice(1)}`)}, held out` : classNamed(id);
  if (sum.added && !quiet) {
    const where = { test: "the tray, to try", pool: "the unlabelled images, under Label next", folders: "the classes their folders name", held: "the test set" }[place] ?? `“${named(place)}”`;
    toast(`${plural(sum.added, "image")} added to ${where}`, { action: "Undo", run: undo });
  }
  for (const [route, count] of tally(sum.moved.map((each) => `moved from ${named(each.from)} to ${named(each.to)}`))) {
    toast(`${plural(count, "image")} ${route}`, { action: "Undo", run: undo });
  }
  const same = sum.known.length - sum.moved.length;
  if (same) toast(`${plural(same, "image")} ${same === 1 ? "was" : "were"} in the project already`);
}

function tally(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return counts;
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
