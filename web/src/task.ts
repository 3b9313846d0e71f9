// A fitted task: FiLM and statistics of named classes, and the task file; the port of `runtime/task.py` and `taskfile.py`.

import type { Engine, Network } from "./engine";
import { InputError } from "./errors";
import { type Classifier, type Statistics, logitsOf, unit } from "./head";
import { argsort, dot } from "./linear";
import { type Stored, type Tensor, asFloat32, asFloat64, digestOf, f32, f64, fromHalf, readSafetensors, toHalf, writeSafetensors } from "./tensors";

export type Name = string | number;
const STRANGE = 0.95; // the share of examples that fit their class better than a stranger does
const ENOUGH = 4; // examples that have another one in their class

export interface Task {
  names: Name[];
  film: Float32Array;
  statistics: Statistics;
  embedding: Float64Array;
  seen: number;
  imageSize: number;
  threshold: number | null;
  prior: Float64Array | null; // logarithms of class weights; null: every class counts alike
  calibration: number; // what the first examples, left out in turn, said of log T beside the model's notes
  ease: Float64Array | null; // see `runtime/novelty.py`; null: novelty is the distance to the nearest class
}

// The order that Python sorts text in: by code points.
export function compareNames(a: Name, b: Name): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  const [x, y] = [[...String(a)], [...String(b)]];
  for (let i = 0; i < Math.min(x.length, y.length); i++) {
    const gap = x[i].codePointAt(0)! - y[i].codePointAt(0)!;
    if (gap) return gap;
  }
  return x.length - y.length;
}

export function statisticsOf(features: Float64Array[], labels: number[], ways: number): Statistics {
  const counts = Array<number>(ways).fill(0), means = counts.map(() => new Float64Array(features[0]?.length ?? 0));
  labels.forEach((k, i) => {
    counts[k]++;
    for (let j = 0; j < means[k].length; j++) means[k][j] += features[i][j];
  });
  means.forEach((mean, k) => { for (let j = 0; j < mean.length; j++) mean[j] = Math.fround(mean[j] / counts[k]); });
  const scatter: Float64Array[][] = counts.map(() => []);
  labels.forEach((k, i) => {
    const row = features[i].map((value, j) => value - means[k][j]);
    if (row.some((value) => value !== 0)) scatter[k].push(row);
  });
  return { counts, means, scatter };
}

export function select({ counts, means, scatter }: Statistics, places: number[]): Statistics {
  return { counts: places.map((i) => counts[i]), means: places.map((i) => means[i]), scatter: places.map((i) => scatter[i]) };
}

// Statistics of both sets; class i of `other` is class `place[i]` of the result, new ones at the end.
export function merge(one: Statistics, other: Statistics, place: number[], ways: number): Statistics {
  const width = one.means[0].length;
  const made: Statistics = { counts: [], means: [], scatter: [] };
  for (let k = 0; k < ways; k++) {
    const i = place.indexOf(k), before = one.counts[k] ?? 0, added = i < 0 ? 0 : other.counts[i], together = before + added;
    const old = one.means[k] ?? new Float64Array(width), fresh = i < 0 ? old : other.means[i];
    const gap = fresh.map((value, j) => value - old[j]);
    made.counts.push(together);
    made.means.push(old.map((value, j) => value + (added / together) * gap[j]));
    const between = gap.map((value) => Math.sqrt((before * added) / together) * value);
    made.scatter.push([...(one.scatter[k] ?? []), ...(i < 0 ? [] : other.scatter[i]), ...(before && added ? [between] : [])]);
  }
  return made;
}

export class FittedTask {
  private made: Classifier | null = null;

  constructor(readonly engine: Engine, readonly task: Task, readonly network: Network) {}

  static async learn(engine: Engine, images: Uint8Array[], labels: number[], names: Name[], imageSize: number, report?: (share: number) => void): Promise<{ fitted: FittedTask; features: Float64Array[] }> {
    const made = await engine.adapt(images, labels, names.length, report);
    const statistics = statisticsOf(made.features, labels, names.length), some = await judged(engine, made.features, labels);
    const task: Task = {
      names, film: made.film, statistics, embedding: made.embedding, seen: labels.length, imageSize, prior: null,
      ...strangersBy(engine, some, made.features, labels), calibration: calibrationBy(engine, some),
    };
    return { fitted: new FittedTask(engine, task, made.network), features: made.features };
  }

  // Other classes under the same FiLM; new ones count like the others.
  with(change: Partial<Task> & Pick<Task, "names">): FittedTask {
    const { names, prior, ease } = this.task;
    const of = (values: Float64Array | null) => values && Float64Array.from(change.names, (name) => values[names.indexOf(name)] ?? 0);
    return new FittedTask(this.engine, { ...this.task, prior: of(prior), ease: of(ease), ...change }, this.network);
  }

  get classifier(): Classifier {
    this.made ??= this.engine.head.classifier(this.task.statistics);
    return this.made;
  }

  // What logits are divided by, so that probabilities mean what they say.
  get temperature(): number {
    const { counts } = this.task.statistics, shots = counts.reduce((x, y) => x + y, 0) / counts.length;
    return temperatureOf(this.engine, counts.length, shots) * Math.exp(this.task.calibration);
  }

  probabilities(features: Float64Array): Float64Array {
    const found = this.softmax(logitsOf(this.classifier, features));
    if (!found.every(Number.isFinite)) throw new InputError("this task gives no probabilities: its numbers are out of all range");
    return found;
  }

  // How unlike all classes features are, 0..2: by how little of any class is there, or by the distance to the nearest one.
  novelty(features: Float64Array): number {
    const { emphasis, groups } = this.engine.head, { statistics: { means }, ease, names } = this.task;
    if (ease && names.length > 1) return strangeness(logitsOf(this.classifier, features), features, ease, groups[groups.length - 1]);
    const common = commonPart(means);
    const apart = (row: Float64Array) => unit(row.map((value, j) => (value - common[j]) * emphasis[j])), own = apart(features);
    return 1 - Math.max(-1, ...means.map((mean) => dot(own, apart(mean))));
  }

  async leftOut(features: Float64Array[], labels: number[], breathe: () => Promise<void>): Promise<Float64Array[]> {
    const logits = await this.engine.head.leftOut(features, labels, this.task.names.length, breathe);
    return logits.map((row) => this.softmax(row));
  }

  private softmax(logits: Float64Array): Float64Array {
    const { temperature, task: { prior } } = this;
    return softmax(logits.map((value, k) => value / temperature + (prior?.[k] ?? 0)));
  }
}

function softmax(logits: Float64Array): Float64Array {
  const highest = Math.max(...logits), rising = logits.map((value) => Math.exp(value - highest));
  const sum = rising.reduce((a, b) => a + b, 0);
  return rising.map((value) => value / sum);
}

const COMMON = 0.75; // of what classes have in common, which strangers of their kind have too, so much is left out

export function commonPart(means: Float64Array[]): Float64Array {
  const sum = new Float64Array(means[0].length);
  if (means.length > 1) for (const mean of means) for (let j = 0; j < sum.length; j++) sum[j] += (COMMON * mean[j]) / means.length;
  return sum;
}

// What logits of tasks like this are divided by, by the model's notes.
function temperatureOf(engine: Engine, ways: number, shots: number): number {
  const [a, b, c] = engine.about.calibration;
  return Math.exp(a + b * Math.log(ways) + c * Math.log(Math.max(shots, 1)));
}

const JUDGED = 150, JUDGED_CLASSES = 100; // about as many examples are left out in turn; of more classes, none

// Some examples, the first ones of each class, and what the others of them say of each.
interface Judged { features: Float64Array[]; labels: number[]; logits: Float64Array[]; ways: number }

export async function judged(engine: Engine, features: Float64Array[], labels: number[], breathe: () => Promise<void> = async () => {}): Promise<Judged | null> {
  const ways = labels.reduce((most, k) => Math.max(most, k + 1), 1);
  if (ways < 2 || ways > JUDGED_CLASSES) return null;
  const counts = Array<number>(ways).fill(0), turn = labels.map((k) => ++counts[k]); // the how-manieth of its class
  const some = argsort(turn).slice(0, Math.max(JUDGED, 2 * ways)).sort((a, b) => a - b);
  const rows = some.map((i) => features[i]), own = some.map((i) => labels[i]);
  return { features: rows, labels: own, logits: await engine.head.leftOut(rows, own, ways, breathe), ways };
}

// What a task adds to log T: its left-out examples are likeliest there; see `maths/calibration.py`.
function calibrationBy(engine: Engine, some: Judged | null): number {
  if (!some) return 0;
  const scale = temperatureOf(engine, some.ways, some.labels.length / some.ways);
  return ownCalibration(some.logits.map((row) => row.map((value) => value / scale)), some.labels);
}

const DOUBT = 3, FEWER = 0.2, WIDEST = 1.2;
const isKnown = (row: Float64Array) => row.every(Number.isFinite);

export function ownCalibration(logits: Float64Array[], labels: number[]): number {
  const known = logits.map((_, i) => i).filter((i) => isKnown(logits[i]));
  if (!known.length) return 0;
  const cost = (more: number) => known.reduce((sum, i) => {
    const scaled = logits[i].map((value) => value / Math.exp(more)), highest = Math.max(...scaled);
    return sum + highest + Math.log(scaled.reduce((all, value) => all + Math.exp(value - highest), 0)) - scaled[labels[i]];
  }, DOUBT * more * more);
  let low = -WIDEST, high = WIDEST;
  const golden = (Math.sqrt(5) - 1) / 2;
  for (let round = 0; round < 30; round++) {
    const left = high - golden * (high - low), right = low + golden * (high - low);
    if (cost(left) < cost(right)) high = right;
    else low = left;
  }
  return (low + high) / 2 - (FEWER * logits[0].length) / logits.length; // by the examples of a class
}

export const EASE = 0.5, FLAT = 5, MIDDLE = 9, STEEP = 2; // as in `runtime/novelty.py`
const FEW = 4;

// The logarithm of the sum of exponentials.
function present(logits: Float64Array): number {
  const highest = Math.max(...logits);
  return highest + Math.log(logits.reduce((sum, value) => sum + Math.exp(value - highest), 0));
}

function strangeness(logits: Float64Array, features: Float64Array, ease: Float64Array, last: number): number {
  const flat = features.subarray(features.length - last).reduce((sum, value) => sum + Math.abs(value), 0) / Math.sqrt(last);
  return 2 / (1 + Math.exp((present(logits.map((value, k) => value - EASE * ease[k])) + FLAT * flat - MIDDLE) / STEEP));
}

// How much surer than others each class is of its own examples.
function classEase({ logits, labels, ways }: Judged): Float64Array {
  const known = logits.map((_, i) => i).filter((i) => isKnown(logits[i])), there = known.map((i) => present(logits[i]));
  const mean = there.reduce((a, b) => a + b, 0) / Math.max(known.length, 1), sums = new Float64Array(ways), counts = Array<number>(ways).fill(FEW);
  known.forEach((i, at) => {
    sums[labels[i]] += there[at] - mean;
    counts[labels[i]]++;
  });
  return sums.map((sum, k) => sum / counts[k]);
}

// The novelty beyond which an image looks like none of the classes, and the ease of each, by examples.
export function strangersBy(engine: Engine, some: Judged | null, features: Float64Array[], labels: number[]): Pick<Task, "threshold" | "ease"> {
  const { emphasis, groups } = engine.head;
  if (!some) return { threshold: noneLevel(features, labels, emphasis), ease: null };
  const ease = classEase(some), last = groups[groups.length - 1];
  const found = some.logits.map((row, i) => (isKnown(row) ? strangeness(row, some.features[i], ease, last) : NaN))
    .filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  const place = Math.min(Math.ceil(STRANGE * (found.length + 1) - 1e-9), found.length);
  return { threshold: found.length < ENOUGH ? null : found[place - 1], ease };
}

// The same by the distance to the nearest class; see `runtime/novelty.py`.
function noneLevel(features: Float64Array[], labels: number[], emphasis: Float64Array): number | null {
  const counts: number[] = [], means: Float64Array[] = [], found: number[] = [];
  for (const k of labels) counts[k] = (counts[k] ?? 0) + 1;
  labels.forEach((k, i) => {
    means[k] ??= new Float64Array(features[i].length);
    for (let j = 0; j < means[k].length; j++) means[k][j] += features[i][j] / counts[k];
  });
  const middle = labels.length ? commonPart(means) : new Float64Array(), share = means.length > 1 ? COMMON / means.length : 0;
  labels.forEach((k, i) => {
    if (counts[k] < 2) return;
    const others = means[k].map((value, j) => value + (value - features[i][j]) / (counts[k] - 1)); // the class without the example
    const common = middle.map((value, j) => value + share * (others[j] - means[k][j]));
    const apart = (row: Float64Array) => unit(row.map((value, j) => (value - common[j]) * emphasis[j]));
    found.push(1 - dot(apart(features[i]), apart(others)));
  });
  return found.length < ENOUGH ? null : quantile(found, STRANGE);
}

function quantile(values: number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b), at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

// task files

export async function writeTask(engine: Engine, task: Task): Promise<Uint8Array> {
  const { statistics, names } = task, ways = names.length, width = engine.head.width;
  const rows = statistics.scatter.flat(), largest = rows.reduce((most, row) => row.reduce((a, b) => Math.max(a, Math.abs(b)), most), 0);
  const flat = new Float32Array(rows.length * width);
  rows.forEach((row, i) => flat.set(row, i * width));
  const tensors = new Map<string, Tensor>([
    ["film", f32([task.film.length], task.film)],
    ["counts", f32([ways], statistics.counts)],
    ["means", f32([ways, width], Float32Array.from(statistics.means.flatMap((mean) => [...mean])))],
    ["task_embedding", f64([task.embedding.length], task.embedding)],
    ["scatter", largest < 65504 ? { kind: "F16", shape: [rows.length, width], data: Uint16Array.from(flat, toHalf) } : f32([rows.length, width], flat)],
    ["scatter_rows", { kind: "I64", shape: [ways], data: BigInt64Array.from(statistics.scatter, (own) => BigInt(own.length)) }],
  ]);
  const { normalisation, name, fingerprint } = engine.about;
  const about = JSON.stringify({
    classes: names, image_size: task.imageSize, resize: "bilinear to a square", mean: normalisation.mean, std: normalisation.std,
    seen: task.seen, model: name, fingerprint, ...(task.threshold === null ? {} : { threshold: task.threshold }),
    ...(task.calibration ? { calibration: task.calibration } : {}), ...(task.prior ? { prior: [...task.prior] } : {}),
    ...(task.ease ? { ease: [...task.ease] } : {}),
  });
  const version = task.ease ? "4" : task.prior ? "3" : "2"; // the oldest that says the same
  const metadata = { about, digest: await digestOf(about, tensors), format: "cnaps-task", version };
  return writeSafetensors({ metadata, tensors });
}

// A number for each class, as a file says it.
function byClass(given: unknown, names: Name[]): Float64Array | null {
  if (given === undefined) return null;
  const sound = (value: unknown) => typeof value === "number" && Math.abs(value) <= 100;
  if (!Array.isArray(given) || given.length !== names.length || !given.every(sound)) throw new InputError("the task file says nothing sound of its classes");
  return Float64Array.from(given);
}

export async function readTask(engine: Engine, bytes: Uint8Array): Promise<Task> {
  const stored = readSafetensors(bytes), { metadata, tensors } = stored;
  if (metadata.format !== "cnaps-task") throw new InputError("this is no task file of cnaps");
  if (!["1", "2", "3", "4"].includes(metadata.version)) throw new InputError("this task file was written by a newer version of cnaps");
  if (metadata.digest !== (await digestOf(metadata.about ?? "", tensors))) throw new InputError("the task file is damaged: its content does not fit its digest");
  const about = JSON.parse(metadata.about);
  if (about.fingerprint !== engine.about.fingerprint) {
    throw new InputError(`the task was made with another model (${about.model || "without a name"}, fingerprint ${String(about.fingerprint).slice(0, 40)}); this page runs ${engine.about.name} (${engine.about.fingerprint}): learn again from the examples`);
  }
  try {
    return rebuild(engine, about, stored);
  } catch (error) {
    throw error instanceof InputError ? error : new InputError(`the task file does not describe a task of this model: ${error}`);
  }
}

function rebuild(engine: Engine, about: any, { tensors }: Stored): Task {
  const { width } = engine.head, names: Name[] = about.classes, ways = names.length;
  const sound = Array.isArray(names) && ways > 0 && new Set(names).size === ways && names.every((name) => typeof name === typeof names[0])
    && [...names].sort(compareNames).every((name, i) => name === names[i]);
  if (!sound) throw new InputError("the task file's classes are repeated or out of order");
  const wanted: [string, number[]][] = [["film", [engine.filmNumbers]], ["counts", [ways]], ["means", [ways, width]], ["task_embedding", [engine.about.settings.embedding_size]]];
  for (const [name, shape] of wanted) {
    if (String(tensors.get(name)?.shape) !== String(shape)) throw new InputError(`the task file's ${name} has another shape than this model's`);
  }
  for (const [name, tensor] of tensors) {
    if (!asFloat64(tensor).every((value) => Math.abs(value) <= 1e9)) throw new InputError(`the task file's ${name} holds numbers out of range`);
  }
  const stored = tensors.get("scatter")!, basis = tensors.get("scatter_basis"), inner = stored.shape[1];
  const raw = asFloat32(stored), sizes = [...asFloat64(tensors.get("scatter_rows")!)];
  if (sizes.length !== ways || sizes.reduce((a, b) => a + b, 0) !== stored.shape[0]) throw new InputError("the task file's scatter is of other classes");
  let place = 0;
  const directions = basis ? asFloat32(basis) : null;
  if ((basis ? basis.shape[1] : inner) !== width || (basis && basis.shape[0] !== inner)) throw new InputError("the task file's scatter has another shape than this model's");
  const row = (i: number) => {
    const own = Float64Array.from(raw.subarray(i * inner, (i + 1) * inner));
    if (!directions) return own;
    const out = new Float64Array(width);
    own.forEach((value, k) => { for (let j = 0; j < width; j++) out[j] += value * directions[k * width + j]; });
    return out;
  };
  const scatter = sizes.map((size) => Array.from({ length: size }, () => row(place++)));
  const means = asFloat64(tensors.get("means")!), counts = [...asFloat64(tensors.get("counts")!)];
  if (counts.some((count) => count <= 0)) throw new InputError("the task file has a class of no images");
  return {
    names,
    film: asFloat32(tensors.get("film")!),
    statistics: { counts, means: names.map((_, k) => means.slice(k * width, (k + 1) * width)), scatter },
    embedding: asFloat64(tensors.get("task_embedding")!),
    seen: about.seen,
    imageSize: engine.checkSize(about.image_size),
    threshold: about.threshold ?? null,
    calibration: about.calibration ?? 0,
    prior: byClass(about.prior, names), ease: byClass(about.ease, names),
  };
}

export const ranking = (probabilities: Float64Array) => argsort(probabilities.map((p) => -p));
export { fromHalf };
