// Everything that takes time: decoding, learning, predicting. It learns whenever it is given another plan, in two
// steps as the studio does: statistics under the FiLM there is, then FiLM made anew from all examples.

import { Engine, type Network } from "./engine";
import { InputError } from "./errors";
import { onnxBytes } from "./export";
import { choose, leftOutScore, mistakes, project, scored, suspects } from "./insight";
import { type Look, SIZES, chooseSize, lookAt, openImage, stepOf, thumbnail, toSquare } from "./pixels";
import type { Answer, Call, Found, Insight, Plan, Prediction, Status } from "./protocol";
import { startRuntime } from "./runtime";
import { FittedTask, type Task, compareNames, judged as judgedBy, merge, ranking, readTask, select, statisticsOf, strangersBy, writeTask } from "./task";
import { joined, sha256 } from "./tensors";

const UNSURE = 0.8; // below this probability the best class is a guess
const SUGGESTED = 24, THUMBNAIL = 320;
const CHUNK = 16; // images between two looks for news
const KEPT = 100_000_000; // bytes of decoded images in memory
const TOGETHER = 4; // files that are decoded at once: browsers do it in threads of their own

let opening: Promise<Engine> | null = null, onGpu: boolean | null = null; // null: nobody has tried it yet
const pixels = new Map<string, Uint8Array>(); // squares as the model reads them
const files = new Map<string, Blob>();
const looks = new Map<string, Look>();
let features = new Map<string, Float64Array>(); // under the FiLM of `base`
const networks = new Set<Network>(); // those of `base` and `fitted`, and earlier ones until nobody asks them
let base: FittedTask | null = null, fitted: FittedTask | null = null, origin = "";
let insight: Insight = { predictions: {}, review: null, held_out: null, suggestions: [], points: {} };
let plan: Plan | null = null, behind = false;

class Interrupted extends Error {}

const WAITING: Status = { phase: "waiting", text: "", seconds: null };
const say = (status: Status) => postMessage({ status });
const breathe = () => new Promise<void>((resolve) => setTimeout(resolve));

async function engine(): Promise<Engine> {
  opening ??= open().catch((error) => { opening = null; throw error; }).finally(() => { if (!behind && !fitted) say(WAITING); }); // somebody only asked about a file
  return opening;
}

async function open(): Promise<Engine> {
  const { model, gpu } = JSON.parse(self.name) as { model: string; gpu: boolean }; // the page says it by the worker's name
  const response = await fetch(model).catch(() => null);
  if (!response?.ok || !response.body) throw new InputError("the model cannot be fetched: look at the connection and load the page again");
  const total = Number(response.headers.get("Content-Length")), parts: Uint8Array[] = [];
  let got = 0;
  for await (const part of response.body as unknown as AsyncIterable<Uint8Array>) {
    parts.push(part);
    got += part.length;
    say({ phase: "learning", text: `Fetching the model, ${Math.round(got / 1e6)}${total ? ` of ${Math.round(total / 1e6)}` : ""} MB`, seconds: null });
  }
  say({ phase: "learning", text: "Starting the model", seconds: null });
  const file = joined(parts);
  if (gpu && onGpu !== false) {
    try {
      const found = new Engine(file, await (await import("./gpu")).startOnGpu());
      onGpu = await found.isExact();
      if (onGpu) return found;
      console.warn("the GPU computes wrongly");
    } catch (error) {
      onGpu = false;
      console.warn("the GPU cannot be used", error);
    }
  }
  const found = new Engine(file, await startRuntime());
  await found.warm();
  return found;
}

// learning

async function followPlans(): Promise<void> {
  if (behind) return; // the loop below sees the new plan
  behind = true;
  for (let done: Plan | null = null; plan && plan !== done; ) {
    done = plan;
    try {
      await follow(done);
    } catch (error) {
      if (onGpu && !(error instanceof Interrupted || error instanceof InputError)) {
        console.warn("the GPU has failed", error);
        onGpu = false;
        done = opening = base = fitted = null; // all again, without it
      } else if (!(error instanceof Interrupted)) say({ phase: "error", text: reason(error), seconds: null });
    }
    for (const network of networks) {
      if (network === base?.network || network === fitted?.network) continue;
      networks.delete(network);
      await network.release();
    }
  }
  behind = false;
  postMessage({ settled: plan?.version });
}

function reason(error: unknown): string {
  const words = error instanceof Error ? error.message : String(error);
  if (error instanceof InputError) return words;
  if (/memory|allocat|invalid array (buffer )?length|bad_alloc/i.test(words)) return "There is not enough memory for this: close other pages, or take some images out.";
  return `Something went wrong while learning: ${words}`;
}

async function follow(now: Plan): Promise<void> {
  const names = [...new Set([...Object.keys(now.classes), ...Object.keys(now.learned)])].sort(compareNames);
  forgetOthers(now, [pixels, features]);
  if (names.length < 2) {
    fitted = null;
    tell({ predictions: {}, review: null, held_out: null, suggestions: [], points: {} });
    say(WAITING);
    return;
  }
  const model = await engine();
  const started = performance.now(), own = Object.keys(now.classes).sort(compareNames), examples = own.flatMap((name) => now.classes[name]);
  const from = now.task ? `task ${await sha256(now.task)}` : JSON.stringify(own.map((name) => [...now.classes[name]].sort()).sort());
  const again = from !== origin || !base;
  if (base && !again) {
    say({ phase: "learning", text: `Looking at ${examples.length} examples`, seconds: null });
    await conclude(now, names, true);
  } else {
    if (base && !now.task && !origin.startsWith("task ")) {
      say({ phase: "refining", text: `Looking at ${examples.length} examples`, seconds: null });
      await conclude({ ...now, pool: now.pool.filter((id) => features.has(id)) }, names, false);
    } else say({ phase: "learning", text: `Learning from ${examples.length} examples`, seconds: null });
    const quick = base !== null; // there are answers meanwhile, so what is out of date need not be learned to its end
    if (now.task) {
      const task = await readTask(model, now.task);
      base = new FittedTask(model, task, await model.network(task.film, task.imageSize));
      features = new Map();
    } else {
      const size = chooseSize(examples.flatMap((id) => looks.get(id) ?? []), model.about.image_sizes);
      const images = await read(examples, size), labels = own.flatMap((name, k) => now.classes[name].map(() => k));
      const found = await FittedTask.learn(model, images, labels, own, size, (share) => {
        if (quick) check(now);
        say({ phase: "learning", text: `Learning from ${examples.length} examples, ${Math.round(share * 100)}%`, seconds: null });
      });
      base = found.fitted;
      features = new Map(examples.map((id, i) => [id, found.features[i]]));
    }
    origin = from;
    networks.add(base.network);
    await conclude({ ...now, pool: [] }, names, false);
    await conclude(now, names, true);
  }
  say({ phase: "ready", text: `Learned from ${fitted!.task.seen} images, read at ${fitted!.task.imageSize} pixels,`, seconds: (performance.now() - started) / 1000 });
}

function forgetOthers(now: Plan, stores: Map<string, unknown>[]): void {
  const keep = new Set([...Object.values(now.classes).flat(), ...Object.values(now.held).flat(), ...now.test, ...now.pool]);
  for (const store of stores) for (const id of store.keys()) if (!keep.has(id)) store.delete(id);
}

async function conclude(now: Plan, names: string[], thorough: boolean): Promise<void> {
  const own = Object.keys(now.classes).sort(compareNames), examples = own.flatMap((name) => now.classes[name]);
  const asked = [...now.test, ...now.pool], labels = own.flatMap((name, k) => now.classes[name].map(() => k));
  const rows = await embed([...asked, ...examples], now);
  const questions = rows.slice(0, asked.length), answers = rows.slice(asked.length), { engine } = base!;
  const judged = !now.task; // what an imported task has seen is not here to be judged
  let statistics = statisticsOf(answers, labels, own.length);
  if (!judged) {
    const order = Object.keys(now.learned), places = Object.values(now.learned);
    let earlier = select(base!.task.statistics, places);
    if (own.length) {
      order.push(...own.filter((name) => !(name in now.learned)));
      earlier = merge(earlier, statistics, own.map((name) => order.indexOf(name)), order.length);
    }
    statistics = select(earlier, names.map((name) => order.indexOf(name)));
  }
  let strangers: Partial<Task> = { threshold: null };
  if (judged) {
    const some = await judgedBy(engine, answers, labels, async () => { await breathe(); check(now); });
    strangers = strangersBy(engine, some, answers, labels);
  }
  const made = base!.with({ names, statistics, seen: labels.length + (judged ? 0 : base!.task.seen), ...strangers }), { threshold } = made.task;
  const probabilities = questions.map((row) => made.probabilities(row));
  const keys = names.map((name) => now.keys[name]);
  fitted = made;
  const suggested = now.pool.length ? choose(probabilities.slice(now.test.length), questions.slice(now.test.length), SUGGESTED) : [];
  const points = rows.length ? project(rows) : [];
  tell({
    predictions: Object.fromEntries(asked.map((id, i) => [id, prediction(probabilities[i], keys, threshold !== null && made.novelty(questions[i]) > threshold)])),
    review: judged ? insight.review : null,
    held_out: Object.keys(now.held).length ? insight.held_out : null,
    suggestions: suggested.map((i) => now.pool[i]),
    points: Object.fromEntries([...asked, ...examples].map((id, i) => [id, points[i]])),
  });
  if (thorough) await test(made, now, keys);
  if (judged && thorough) {
    const fit = await made.leftOut(answers, labels, async () => { await breathe(); check(now); });
    const worst = (await doubted(made, fit, answers, labels, now)).map(([i, k]) => ({ id: examples[i], better: keys[k], fit: fit[i][labels[i]], better_fit: fit[i][k] }));
    tell({ ...insight, review: { ...leftOutScore(fit, labels), suspects: worst, ...mistakes(fit, labels, examples, keys) } });
  }
}

const CORRECTED = 8, FEW = 500; // labels that are corrected in thought, of examples at most

// Labels that look wrong, without those that another wrong one makes look so: the worst is corrected and the others are
// judged again, a few times; of large sets a wrong one spoils little.
async function doubted(task: FittedTask, fit: Float64Array[], rows: Float64Array[], labels: number[], now: Plan): Promise<[number, number][]> {
  const found: [number, number][] = [], corrected = [...labels];
  const left = () => suspects(fit, corrected).filter(([i]) => !found.some(([j]) => j === i));
  for (let round = 0; round < (labels.length <= FEW ? CORRECTED : 0); round++) {
    const [worst] = left();
    if (!worst || corrected.filter((k) => k === corrected[worst[0]]).length < 3) break;
    found.push(worst);
    corrected[worst[0]] = worst[1];
    fit = await task.leftOut(rows, corrected, async () => { await breathe(); check(now); });
  }
  return [...found, ...left()];
}

// How the images are answered that are held out of each class that is known by now.
async function test(task: FittedTask, now: Plan, keys: string[]): Promise<void> {
  const places = Object.keys(now.held).filter((name) => task.task.names.includes(name)), images = places.flatMap((name) => now.held[name]);
  if (!images.length) return;
  const labels = places.flatMap((name) => now.held[name].map(() => task.task.names.indexOf(name)));
  const answers = (await embed(images, now)).map((row) => task.probabilities(row));
  tell({ ...insight, held_out: { ...scored(answers, labels), ...mistakes(answers, labels, images, keys) } });
}

function tell(found: Insight): void {
  insight = found;
  postMessage({ insight });
}

function prediction(row: Float64Array, keys: string[], stranger: boolean): Prediction {
  const order = ranking(row).slice(0, 4);
  return {
    top: order.map((k) => [keys[k], Math.min(Math.max(row[k], 1e-4), 1 - 1e-4)]), // nothing is ever shown as certain
    doubt: stranger ? "none" : row[order[0]] < UNSURE ? "unsure" : "",
  };
}

// Features under the present FiLM. An interruption keeps what was computed.
async function embed(ids: string[], now: Plan): Promise<Float64Array[]> {
  const missing = ids.filter((id) => !features.has(id));
  for (let i = 0; i < missing.length; i += CHUNK) {
    const part = missing.slice(i, i + CHUNK), rows = await base!.network.run(await read(part, base!.task.imageSize));
    part.forEach((id, j) => features.set(id, rows[j]));
    await breathe();
    check(now);
  }
  return ids.map((id) => features.get(id)!);
}

function check(now: Plan): void {
  if (plan?.version !== now.version) throw new Interrupted();
}

async function read(ids: string[], size: number): Promise<Uint8Array[]> {
  const found: Uint8Array[] = [];
  for (let i = 0; i < ids.length; i += TOGETHER) found.push(...await Promise.all(ids.slice(i, i + TOGETHER).map((id) => squareOf(id, size))));
  return found;
}

async function squareOf(id: string, size: number): Promise<Uint8Array> {
  const known = pixels.get(id), file = files.get(id);
  if (!file) throw new Interrupted(); // it was taken out meanwhile
  const made = known?.length === size * size * 3 ? known : await square(file, size);
  keep(id, made);
  return made;
}

function keep(id: string, square: Uint8Array): void {
  if (pixels.has(id) || pixels.size * square.length < KEPT) pixels.set(id, square);
}

const square = async (file: Blob, size: number) => toSquare(await openImage(file, 2 * size), size);

// what the page asks for

const calls: { [kind in Call["kind"]]: (call: Extract<Call, { kind: kind }>) => Promise<unknown> } = {
  // a file is an image, or is refused; its small picture. The model is on its way meanwhile, and the square as it will
  // probably be read is kept, so that it is decoded once.
  async look({ id, file }) {
    void engine().catch(() => {}); // said when it is needed
    const picture = await openImage(file, 2 * Math.max(...SIZES)), look = lookAt(picture), size = base?.task.imageSize ?? chooseSize([look]);
    if (picture.step === (picture.jpeg ? stepOf(...picture.whole, 2 * size) : 1)) keep(id, toSquare(picture, size));
    return { look, small: await thumbnail(picture, THUMBNAIL) };
  },
  async keep({ id, file, look }) {
    files.set(id, file);
    looks.set(id, look);
  },
  async follow({ plan: next }) {
    plan = next;
    forgetOthers(next, [files, looks]); // now, and not when it is followed: by then files of a later plan are here
    void followPlans();
  },
  async classify({ files: asked }) {
    for (;;) {
      const now = learned(), found: (Found | { error: string })[] = [], good: number[] = [], squares: Uint8Array[] = [];
      await Promise.all(asked.map(async (file, i) => {
        try {
          squares[i] = await square(file, now.task.imageSize);
          good.push(i);
        } catch (error) {
          found[i] = { error: reason(error) };
        }
      }));
      if (now.network !== fitted?.network) continue; // it has learned anew meanwhile
      (await now.network.run(good.map((i) => squares[i]))).forEach((row, j) => { found[good[j]] = answer(now, row); });
      return found;
    }
  },
  async checkTask({ bytes }) {
    const { names, statistics } = await readTask(await engine(), bytes);
    return names.map((name, i) => [String(name), i, Math.round(statistics.counts[i])]);
  },
  async task() { return writeTask((await engine()), learned().task); },
  async onnx() { return onnxBytes(learned(), { task: base64(await writeTask(await engine(), learned().task)) }); },
  async ask({ ids }) {
    const now = learned();
    return (await embed(ids, plan!)).map((row) => answer(now, row));
  },
};

function answer(task: FittedTask, row: Float64Array): Found {
  const found = task.probabilities(row), novelty = task.novelty(row);
  return { ranking: ranking(found).map((k) => [String(task.task.names[k]), found[k]]), novelty, stranger: task.task.threshold !== null && novelty > task.task.threshold };
}

function learned(): FittedTask {
  if (!fitted) throw new InputError("there is nothing learned yet: give examples of at least two classes");
  return fitted;
}

function base64(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

addEventListener("message", async ({ data }: MessageEvent<{ number: number; call: Call }>) => {
  const answer: Answer = { number: data.number };
  try {
    answer.value = await (calls[data.call.kind] as (call: Call) => Promise<unknown>)(data.call);
  } catch (error) {
    answer.error = error instanceof Interrupted ? "the project changed meanwhile: try again" : reason(error);
  }
  postMessage(answer);
});
