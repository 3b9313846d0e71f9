// The studio's server without a server: the same requests, answered in the page and by its worker.

import { Answers, folderName, freeName, table } from "./answers";
import { InputError } from "./errors";
import { readMetadata } from "./onnx";
import type { Look } from "./pixels";
import type { Answer, Call, Found, Insight, News, Plan, Status } from "./protocol";
import { type Class, type Image, type Project, type Stored, projects, readImage, removeProject, saveImage, saveProject, tidy } from "./store";
import { sha256 } from "./tensors";
import { readZip, writeZip } from "./zip";

const QUIET = 80; // milliseconds until the next request of a drop has begun
const TOGETHER = 4; // files that are decoded at once
const MOST_CLASSES = 200, MOST_IMAGES = 5000, UNDO = 100, REMIND = 25; // changes until a reminder to export
const EMPTY: Insight = { predictions: {}, review: null, held_out: null, suggestions: [], points: {} };

let project: Project = fresh();
let insight = EMPTY, status: Status = { phase: "waiting", text: "", seconds: null };
let past: string[] = [], group = "", version = 0, settled = 0, changes = 0;
let waiting: (() => void)[] = [];
const small = new Map<string, string>(); // addresses of small pictures
const sent = new Set<string>(); // images that the worker has
const recent = new Map<string, Stored>(); // added just now: they need not be read again
let arriving = 0, soon = 0; // requests that bring images; the timer that follows them

const answers = new Answers((files) => call({ kind: "classify", files }));

export const source = (id: string) => small.get(id) ?? "data:,";
export const answerSource = (index: number) => answers.picture(index);
export const PACE = 0; // no request is on its way: one question about the camera's picture follows the other
export const hooks: { remind?: () => void; isolated?: Promise<unknown> } = {};

function fresh(): Project {
  return { id: crypto.randomUUID(), name: "My project", classes: [], images: [], task: null, changed: 0 };
}

function news(): void {
  version++;
  for (const wake of waiting.splice(0)) wake();
}

// the worker

let worker: Promise<Worker> | null = null;
const open = new Map<number, { resolve: (value: any) => void; reject: (error: Error) => void }>();
let calls = 0;

async function start(): Promise<Worker> {
  if (!simd()) throw new InputError("This browser is too old for this page: its WebAssembly has no SIMD. A current Firefox, Chrome, Edge or Safari has it.");
  await hooks.isolated; // what the worker fetches shall come by way of the service worker
  const name = JSON.stringify({ model: new URL("model.safetensors", document.baseURI).href, gpu: await hasGpu() });
  const made = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name });
  made.onmessage = ({ data }: MessageEvent<News>) => {
    if ("number" in data) {
      const call = open.get(data.number), { error, value } = data as Answer;
      open.delete(data.number);
      return error === undefined ? call?.resolve(value) : call?.reject(new InputError(error));
    }
    if (data.status) status = data.status;
    if (data.insight) insight = data.insight;
    if (data.settled !== undefined) settled = data.settled;
    news();
  };
  made.onerror = (event) => {
    status = { phase: "error", text: `This browser cannot run the page: ${event.message || "its worker does not start"}`, seconds: null };
    news();
  };
  return made;
}

// Whether this browser has WebAssembly with SIMD: a function of one instruction of it.
function simd(): boolean {
  return WebAssembly.validate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11]));
}

// A real one: where a processor only plays its part, WebAssembly is faster.
async function hasGpu(): Promise<boolean> {
  const adapter = await (navigator as any).gpu?.requestAdapter().catch(() => null);
  return Boolean(adapter && !adapter.info?.isFallbackAdapter);
}

export async function call<T>(what: Call, transfer: Transferable[] = []): Promise<T> {
  worker ??= start();
  const to = await worker, number = ++calls;
  return new Promise((resolve, reject) => {
    open.set(number, { resolve, reject });
    to.postMessage({ number, call: what }, transfer);
  });
}

// the project

async function show(id: string): Promise<void> {
  if (small.has(id)) return;
  const stored = await readImage(id);
  if (stored) small.set(id, URL.createObjectURL(stored.small));
}

function touched(): void {
  changes++;
  news();
}

// The worker learns once from images that arrive together, in however many requests.
function followSoon(wait = 0): void {
  clearTimeout(soon);
  if (arriving) return;
  soon = window.setTimeout(() => void follow().catch((error) => { status = { phase: "error", text: error.message, seconds: null }; news(); }), wait);
}

async function follow(): Promise<void> {
  if (!project.images.length && !project.task && !worker) return;
  for (const { id } of project.images) {
    if (sent.has(id)) continue;
    const stored = recent.get(id) ?? await readImage(id);
    if (stored) await call({ kind: "keep", id, file: stored.file, look: stored.look });
    sent.add(id);
  }
  const inside = (place: string) => project.images.filter((image) => image.place === place).map(({ id }) => id);
  const byClass = (find: (id: string) => string[]) => Object.fromEntries(project.classes.map(({ id, name }) => [name, find(id)] as const).filter(([, ids]) => ids.length));
  const learned = project.classes.filter((entry) => entry.learned);
  const plan: Plan = {
    version: changes,
    classes: byClass((id) => inside(id)), held: byClass((id) => inside(heldOut(id))),
    test: inside("test"), pool: inside("pool"),
    task: learned.length ? project.task : null,
    learned: Object.fromEntries(learned.map(({ name, learned }) => [name, learned![0]])),
    keys: Object.fromEntries(project.classes.map(({ id, name }) => [name, id])),
  };
  recent.clear();
  for (const id of sent) if (!project.images.some((image) => image.id === id)) sent.delete(id);
  await call({ kind: "follow", plan });
}

// What happens within is one change: saved and undone as a whole, and if it fails, it never was.
async function change(run: () => void | Promise<void>, together = ""): Promise<void> {
  const before = project;
  project = structuredClone(project);
  try {
    await run();
    project.changed++;
    await saveProject(project);
  } catch (error) {
    project = before;
    throw error;
  }
  if (!together || together !== group) past = [...past.slice(1 - UNDO), JSON.stringify({ ...before, task: null })];
  group = together;
  if (project.changed === REMIND) hooks.remind?.();
  touched();
  followSoon();
}

const fold = (name: string) => name.normalize("NFC").toLowerCase();
function cleanName(name: unknown): string {
  const clean = String(name).replace(/\p{C}/gu, " ").split(/\s+/).join(" ").trim().slice(0, 120).trim();
  if (!clean) throw new InputError("a name needs at least one letter");
  return clean;
}
const findClass = (name: string) => project.classes.find((entry) => fold(entry.name) === fold(cleanName(name)));

function addClass(name: string, learned: Class["learned"] = null): string {
  const known = findClass(name);
  if (known) {
    known.learned = learned ?? known.learned;
    return known.id;
  }
  if (project.classes.length >= MOST_CLASSES) throw new InputError(`a project holds at most ${MOST_CLASSES} classes`);
  const id = `c${Math.max(0, ...project.classes.map((entry) => Number(entry.id.slice(1)))) + 1}`;
  project.classes.push({ id, name: cleanName(name), learned });
  return id;
}

const heldOut = (id: string) => `h${id.slice(1)}`; // the place of the images of a class that are held out
const isTray = (place: string) => place === "test" || place === "pool";

function checkPlace(place: string): void {
  if (!isTray(place) && !project.classes.some(({ id }) => id === place || heldOut(id) === place)) throw new InputError("there is no such class any more");
}

interface Report { added: string[]; known: string[]; moved: { name: string; from: string; to: string }[]; refused: { name: string; reason: string }[] }

// The image in storage, and its small picture on the page.
async function keep(file: Blob): Promise<string> {
  const id = (await sha256(new Uint8Array(await file.arrayBuffer()))).slice(0, 32);
  const stored = { file: new Blob([file], { type: file.type }), ...await call<{ small: Blob; look: Look }>({ kind: "look", id, file }) };
  await saveImage(id, stored);
  recent.set(id, stored);
  if (!small.has(id)) small.set(id, URL.createObjectURL(stored.small));
  return id;
}

// Files are looked at and kept before the project changes.
async function add(files: [string, Blob][], place: string, together: string): Promise<Report> {
  const report: Report = { added: [], known: [], moved: [], refused: [] }, kept: { id: string; name: string; folder: string }[] = [];
  const one = async ([path, file]: [string, Blob]) => {
    const parts = path.split("/"), name = parts.at(-1)!;
    try {
      return [{ id: await keep(file), name, folder: parts.at(-2) ?? "" }];
    } catch (error) {
      if (!(error instanceof InputError) || /storage/.test(error.message)) throw error;
      report.refused.push({ name, reason: error.message });
      return [];
    }
  };
  arriving++;
  clearTimeout(soon);
  try {
    for (let i = 0; i < files.length; i += TOGETHER) kept.push(...(await Promise.all(files.slice(i, i + TOGETHER).map(one))).flat());
    await change(() => {
      for (const { id, name, folder } of kept) {
        const asked = place === "held" && folder.trim() ? findClass(folder)?.id : undefined;
        if (place === "held" && !asked) {
          report.refused.push({ name, reason: folder ? `no class is named “${folder}”` : "it lies in no folder named like a class" });
          continue;
        }
        const to = asked ? heldOut(asked) : place === "folders" ? addClass(folder || "unnamed") : place;
        checkPlace(to);
        const known = project.images.find((image) => image.id === id);
        if (known) {
          report.known.push(known.name);
          if (isTray(to) || known.place === to) continue; // a label says more than a tray
          report.moved.push({ name: known.name, from: known.place, to });
          put([id], to);
        } else {
          report.added.push(id);
          project.images.push({ id, name, place: to });
        }
      }
      if (project.images.length > MOST_IMAGES) throw new InputError(`a project holds at most ${MOST_IMAGES.toLocaleString("en")} images`);
    }, together);
  } finally {
    arriving--;
    followSoon(QUIET);
  }
  return report;
}

// Moved to the end, since the latest comes last; nobody has confirmed the new label.
function put(images: string[], place: string): void {
  const moved = project.images.filter(({ id }) => images.includes(id));
  project.images = [...project.images.filter(({ id }) => !images.includes(id)), ...moved.map(({ id, name }) => ({ id, name, place }))];
}

// files in and out

const plain = (name: string) => name.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, "") || "project";

async function exported(kind: string): Promise<Response> {
  const name = plain(project.name);
  const make: Record<string, () => Promise<[string, Blob]>> = {
    task: async () => [`${name}.task`, await untouched() ?? bytes(await call({ kind: "task" }))],
    onnx: async () => [`${name}.onnx`, bytes(await call({ kind: "onnx" }))],
    project: async () => [`${name}.zip`, await wholeProject()],
    page: async () => [`${name}-page.zip`, await ownPage()],
  };
  if (!make[kind]) throw new InputError(`there is: ${Object.keys(make).join(", ")}`);
  const [file, body] = await make[kind]();
  if (kind === "project") {
    project.changed = 0;
    await saveProject(project);
  }
  return download(file, body);
}

const download = (name: string, body: Blob) => new Response(body, { headers: { "Content-Disposition": `attachment; filename="${name}"` } });

const bytes = (data: Uint8Array) => new Blob([data as Uint8Array<ArrayBuffer>], { type: "application/octet-stream" });

// An imported task that nothing was added to, bit for bit.
async function untouched(): Promise<Blob | null> {
  if (!project.task || project.images.some(({ place }) => place.startsWith("c"))) return null;
  const inside = await call<[string, number, number][]>({ kind: "checkTask", bytes: project.task });
  const same = inside.length === project.classes.length && inside.every(([name, row]) => project.classes.some((entry) => entry.name === name && entry.learned?.[0] === row));
  return same ? bytes(project.task) : null;
}

// The answers for the images of the tray.
async function tray(): Promise<Blob> {
  const asked = project.images.filter(({ place }) => place === "test");
  if (!asked.length) throw new InputError("there are no images in the tray");
  const found = await call<Found[]>({ kind: "ask", ids: asked.map(({ id }) => id) });
  return table(found.map((each, i) => ({ ...each, name: asked[i].name })));
}

// Class folders with people's own file names, and a project.json that the studio reads too.
async function wholeProject(): Promise<Blob> {
  const files: [string, Blob][] = [], taken = new Set<string>(), paths = new Map<string, string>();
  for (const image of project.images) {
    const own = project.classes.find(({ id }) => id === image.place || heldOut(id) === image.place);
    const folder = own ? `${image.place === own.id ? "examples" : "held out"}/${folderName(own.name)}` : image.place === "test" ? "tray" : "unlabelled";
    const path = freeName(folder, image.name, taken);
    paths.set(image.id, path);
    const stored = await readImage(image.id);
    if (stored) files.push([path, stored.file]);
  }
  const task = project.task && project.classes.some(({ learned }) => learned) ? project.task : null;
  const about = {
    format: "cnaps-project", version: project.images.some(({ place }) => place.startsWith("h")) ? 2 : 1, name: project.name, task: task ? (await sha256(task)).slice(0, 32) : "",
    classes: project.classes, images: project.images.map((image) => ({ ...image, path: paths.get(image.id) })),
  };
  if (task) files.push(["task.safetensors", bytes(task)]);
  return writeZip([["project.json", new Blob([JSON.stringify(about, null, 2)])], ...files]);
}

// A page that classifies with this task: the files of page.json, and the network.
async function ownPage(): Promise<Blob> {
  const network = bytes(await call({ kind: "onnx" }));
  const list: Record<string, string> = await (await fetched("page.json")).json();
  const files: [string, Blob][] = [];
  for (const [to, from] of Object.entries(list)) files.push([to, await (await fetched(from)).blob()]);
  return writeZip([...files, ["classifier.onnx", network]]);
}

async function fetched(path: string): Promise<Response> {
  const response = await fetch(new URL(path, document.baseURI)).catch(() => null);
  if (!response?.ok) throw new InputError(`${path} cannot be fetched: look at the connection and try again`);
  return response;
}

async function bringIn(file: Blob): Promise<{ message: string }> {
  const start = new Uint8Array(await file.slice(0, 9).arrayBuffer());
  if (start[0] === 0x50 && start[1] === 0x4b) return bringZip(file);
  let task = new Uint8Array(await file.arrayBuffer()) as Uint8Array;
  if (start[8] !== 0x7b) { // where the header of safetensors begins
    const inside = (() => { try { return readMetadata(task).get("task"); } catch { return undefined; } })();
    if (!inside) throw new InputError("this is no project, task or ONNX file made by cnaps");
    task = Uint8Array.from(atob(inside), (c) => c.charCodeAt(0));
  }
  const found = await call<[string, number, number][]>({ kind: "checkTask", bytes: task });
  await change(() => learn(task, found));
  return { message: `${found.length} classes added that were learned elsewhere` };
}

function learn(task: Uint8Array, classes: [string, number, number][]): void {
  if (project.classes.some(({ learned }) => learned)) throw new InputError("this project starts from an imported task already: begin a new one for another");
  project.task = task;
  for (const [name, row, count] of classes) addClass(name, [row, count]);
}

async function bringZip(file: Blob): Promise<{ message: string }> {
  const parts = await readZip(file), together = crypto.randomUUID();
  const description = parts.get("project.json");
  let entries: { path: string; place: string; name: string }[];
  const places = new Map<string, string>([["test", "test"], ["pool", "pool"]]);
  if (description) {
    let about: any;
    try {
      about = JSON.parse(new TextDecoder().decode(await description()));
      if (about.format !== "cnaps-project" || !(about.version <= 2)) throw new Error();
      entries = about.images.map((image: Image & { path: string }) => ({ path: String(image.path), place: String(image.place), name: String(image.name) }));
    } catch {
      throw new InputError("the zip file's description of a project is damaged, or newer than this page");
    }
    const task = about.classes.some((entry: Class) => entry.learned) ? await parts.get("task.safetensors")?.() : undefined;
    const rows = task ? await call<[string, number, number][]>({ kind: "checkTask", bytes: task }) : [];
    await change(() => {
      if (task) learn(task, about.classes.filter((entry: Class) => entry.learned && rows[entry.learned[0]]).map((entry: Class) => [entry.name, ...entry.learned!]));
      for (const entry of about.classes) {
        const own = addClass(entry.name);
        places.set(entry.id, own).set(heldOut(entry.id), heldOut(own));
      }
    }, together);
  } else entries = [...parts.keys()].filter((path) => path.includes("/") && !/(^|\/)(\.|__MACOSX)/.test(path)).map((path) => ({ path, place: "folders", name: path }));
  const sum = { added: 0, refused: 0 };
  for (const { path, place, name } of entries) {
    const to = place === "folders" ? place : places.get(place), data = await parts.get(path)?.();
    if (!to || !data) { sum.refused++; continue; }
    const report = await add([[name, new Blob([data as Uint8Array<ArrayBuffer>])]], to, together);
    sum.added += report.added.length;
    sum.refused += report.refused.length;
  }
  return { message: `${sum.added} images added${sum.refused ? `, ${sum.refused} could not be used` : ""}` };
}

// projects

export const otherProjects = async () => (await projects()).filter(({ id }) => id !== project.id);
export const unsaved = () => project.changed >= REMIND;

export async function openProject(id?: string): Promise<void> {
  const known = await projects(), wanted = id ?? localStorage.getItem("project");
  if (!project.classes.length && !project.images.length) await removeProject(project.id);
  project = (id === "" ? undefined : known.find((entry) => entry.id === wanted) ?? (id ? undefined : known[0])) ?? fresh();
  localStorage.setItem("project", project.id);
  past = [];
  insight = EMPTY;
  await tidy();
  for (const image of project.images) await show(image.id);
  project.images = project.images.filter((image) => small.has(image.id));
  touched();
  await follow();
}

// the requests

type Body = any;
const routes: [string, RegExp, (body: Body, found: string[]) => Promise<unknown>][] = [
  ["PATCH", /^project$/, ({ name }) => change(() => { project.name = cleanName(name); })],
  ["POST", /^undo$/, async () => {
    const before = past.pop();
    if (!before) return { undone: false };
    project = { ...JSON.parse(before), task: project.task, changed: project.changed + 1 };
    group = "";
    await saveProject(project);
    touched();
    await follow();
    return { undone: true };
  }],
  ["POST", /^classes$/, async ({ name }) => {
    let id = "";
    await change(() => { id = addClass(name); });
    return { id };
  }],
  ["PATCH", /^classes\/(\w+)$/, ({ name }, [id]) => change(() => {
    const known = findClass(name);
    if (known && known.id !== id) throw new InputError(`there is a class named “${known.name}” already`);
    project.classes.find((entry) => entry.id === id)!.name = cleanName(name);
  })],
  ["DELETE", /^classes\/(\w+)$/, (_, [id]) => change(() => {
    project.classes = project.classes.filter((entry) => entry.id !== id);
    put(project.images.filter(({ place }) => place === id || place === heldOut(id)).map((image) => image.id), "pool");
  })],
  ["PATCH", /^images$/, ({ images, place }) => change(() => {
    checkPlace(place);
    put(images, place);
  })],
  ["POST", /^right$/, ({ images }) => change(() => { for (const image of project.images) if (images.includes(image.id)) image.right = true; })],
  ["POST", /^held-out$/, async ({ share }) => {
    let held = 0;
    await change(() => {
      for (const { id: place } of project.classes) {
        const own = project.images.filter((image) => image.place === place).map(({ id }) => id).sort(), some = own.slice(0, Math.floor(share * own.length));
        put(some, heldOut(place));
        held += some.length;
      }
    });
    return { held };
  }],
  ["DELETE", /^images$/, ({ images }) => change(() => { project.images = project.images.filter(({ id }) => !images.includes(id)); })],
  ["POST", /^images$/, (form: FormData) => add(filesOf(form), String(form.get("place")), String(form.get("group") ?? ""))],
  ["GET", /^answers$/, async () => answers.describe()],
  ["DELETE", /^answers$/, async () => answers.clear()],
  ["POST", /^answers\/files$/, async (form: FormData) => answers.drop(filesOf(form))],
  ["POST", /^answers\/start$/, async () => answers.start(status.phase === "waiting" ? [] : project.classes.map(({ name }) => name))],
  ["GET", /^answers\/tray$/, async () => download("tray.csv", await tray())],
  ["GET", /^answers\/(table|sorted)$/, async (_, [kind]) => download(...await answers.file(kind))],
  ["POST", /^predict$/, async (file: Blob) => ({ predictions: [await predicted(file)] })],
  ["POST", /^import$/, (file: Blob) => bringIn(file)],
  ["GET", /^export\/(\w+)$/, (_, [kind]) => exported(kind)],
];

function filesOf(form: FormData): [string, Blob][] {
  const paths = form.getAll("paths").map(String);
  return form.getAll("files").map((file, i) => [paths[i] ?? (file as File).name, file as File]);
}

async function predicted(file: Blob): Promise<unknown> {
  const [found] = await call<(Found | { error: string })[]>({ kind: "classify", files: [file] });
  if ("error" in found) throw new InputError(found.error);
  const [[label, probability]] = found.ranking;
  return { name: "image", label, probability, probabilities: Object.fromEntries(found.ranking), novelty: found.novelty, none_of_these: found.stranger };
}

export async function send(path: string, { method, body }: { method: string; body?: Body }): Promise<Response> {
  const [, rest, query] = path.match(/^\/(?:api\/)?([^?]*)\??(.*)$/)!;
  try {
    if (rest === "state") return json(await state(new URLSearchParams(query).get("since") ?? ""));
    for (const [verb, pattern, run] of routes) {
      const found = rest.match(pattern);
      if (verb !== method || !found) continue;
      const answer = await run(typeof body === "string" ? JSON.parse(body) : body, found.slice(1));
      return answer instanceof Response ? answer : json(answer ?? null);
    }
    throw new Error(`no route ${method} ${path}`);
  } catch (error) {
    if (!(error instanceof InputError)) console.error(error);
    return json({ error: (error as Error).message }, 422);
  }
}

const json = (value: unknown, code = 200) => new Response(JSON.stringify(value), { status: code, headers: { "Content-Type": "application/json" } });

async function state(since: string): Promise<unknown> {
  while (since === String(version)) await new Promise<void>((resolve) => waiting.push(resolve));
  const { name, classes, images } = project;
  return {
    name, classes, images, ...insight, version: String(version), can_undo: past.length > 0, status, settled: settled === changes,
    folder: project.id, shelf: false, pages: true, // pages of one's own can be made here
  };
}
