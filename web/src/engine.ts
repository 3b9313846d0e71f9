// The model's bundle run by onnxruntime-web: the port of `runtime/bundle.py` and `runtime/engine.py`.

import type { InferenceSession, Tensor } from "onnxruntime-web/wasm";
import { InputError } from "./errors";
import { Head } from "./head";
import { type Graph, type Port, type Values, mentions, readGraph, writeModel } from "./onnx";
import type { Runtime } from "./runtime";
import { asFloat32, readSafetensors } from "./tensors";

const PIXELS = 32 * 96 * 96; // that are run at once: few enough for little memory
const SHAPES: Record<string, string[]> = { members: ["ways", "n"], pooled: ["n", "c"], embedding: ["e"] };

export interface About {
  name: string;
  fingerprint: string;
  settings: { head: string; features: string; adaptation: string; set_encoder_norm: string; embedding_size: number; lora_large?: number };
  calibration: [number, number, number];
  image_size: number;
  image_sizes: number[]; // that `auto` chooses from
  min_image_size: number;
  size_step: number;
  channels: number[];
  sites: [string, number][][];
  normalisation: { mean: number[]; std: number[] };
  set_encoder_size: number | null;
}
export interface Adaptation { film: Float32Array; features: Float64Array[]; embedding: Float64Array; network: Network }
export type Network = { run: (images: Uint8Array[]) => Promise<Float64Array[]>; release: () => Promise<void> };
type Weights = Map<string, Values>;
type Report = (share: number) => void;

export class Engine {
  readonly about: About;
  readonly head: Head;
  private readonly frozen: Weights = new Map(); // stem and stages without LoRA terms
  private readonly lora = new Map<string, Record<string, Float32Array>>(); // outer (O, r), inner (r, I) and scale (O,) of a convolution
  private adapted: { share: number; layers: Weights } | null = null;
  private readonly state: Weights = new Map();
  private readonly graphs = new Map<string, Graph>();
  private wanted: ArrayLike<number> = []; // features of a pattern without FiLM
  private readonly fixed = new Map<string, Promise<InferenceSession>>(); // of what no task changes

  constructor(file: Uint8Array, private readonly runtime: Runtime) {
    const { metadata, tensors } = readSafetensors(file);
    if (metadata.format !== "cnaps-web-model") throw new InputError("this is no model for the page");
    this.about = JSON.parse(metadata.about);
    for (const [name, tensor] of tensors) {
      const [kind, rest] = [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1)];
      if (kind === "graphs") this.graphs.set(rest, readGraph(tensor.data as Uint8Array));
      else if (kind === "check") this.wanted = asFloat32(tensor);
      else if (kind === "lora") {
        const [layer, part] = rest.split("/");
        this.lora.set(layer, { ...this.lora.get(layer), [part]: asFloat32(tensor) });
      } else (kind === "layers" ? this.frozen : this.state).set(rest, { shape: tensor.shape, data: asFloat32(tensor) });
    }
    const numbers = new Map([...this.state].filter(([name]) => name.startsWith("head.")).map(([name, value]) => [name.slice(5), value.data as Float32Array]));
    this.head = new Head(this.about.settings.head, this.groups, numbers);
  }

  get stages(): string[] { return this.about.channels.slice(1).map((_, i) => `stages.${i}`); }
  get every(): boolean { return this.about.settings.features === "all"; }
  get groups(): number[] { return this.every ? this.about.channels.slice(1) : this.about.channels.slice(-1); }
  get filmNumbers(): number { return 2 * this.about.sites.flat().reduce((sum, [, n]) => sum + n, 0); }

  checkSize(size: number): number {
    const { min_image_size: least, size_step: step, image_size: own } = this.about;
    if (size < least || (step ? (size - own) % step !== 0 : size !== own)) throw new InputError(`images cannot be read at ${size} pixels`);
    return size;
  }

  // Whether it computes what Python does: the features of a pattern of pixels, with FiLM that changes nothing.
  async isExact(): Promise<boolean> {
    const film = Float32Array.from(this.about.sites.flat().flatMap(([, n]) => [...Array<number>(n).fill(1), ...Array<number>(n).fill(0)]));
    const pattern = Uint8Array.from({ length: 96 * 96 * 3 }, (_, i) => (i * i) % 251);
    const network = await this.network(film, 96), [found] = await network.run([pattern]);
    await network.release();
    return found.every((value, i) => Math.abs(value - this.wanted[i]) < 1e-4);
  }

  // What no task changes is started before it is needed.
  async warm(): Promise<void> {
    for (const name of ["stem", "set_encoder", ...this.stages.map((_, i) => `film.${i}`)]) if (this.graphs.has(name)) await this.session(name);
  }

  // One pass: before each stage its FiLM is made, and the session with it then reads the examples; the same sessions
  // predict afterwards. `report` may throw, and then nothing was learned.
  async adapt(images: Uint8Array[], labels: number[], ways: number, report: Report = () => {}): Promise<Adaptation> {
    const embedding = await this.embedding(images);
    const members = new Float32Array(ways * images.length);
    labels.forEach((k, i) => { members[k * images.length + i] = 1; });
    const size = Math.sqrt(images[0].length / 3), layers = this.layersAt(size), sessions = [await this.session("stem")];
    const film: Float32Array[] = [], pooled: Float32Array[] = [], { sites, channels, settings } = this.about;
    try {
      let [maps, means] = await step(sessions[0], this.inputs(images));
      for (let stage = 0; stage < this.stages.length; stage++) {
        report(stage / this.stages.length);
        if (sites[stage].length) {
          const given: Record<string, Tensor> = {};
          if (settings.embedding_size) given.embedding = new this.runtime.ort.Tensor(Float32Array.from(embedding), [embedding.length]);
          if (settings.adaptation === "film+ar") {
            given.members = new this.runtime.ort.Tensor(members, [ways, images.length]);
            given.pooled = new this.runtime.ort.Tensor(means, [images.length, channels[stage]]);
          }
          const session = await this.session(`film.${stage}`);
          film.push((await session.run(given))[session.outputNames[0]].data as Float32Array);
        }
        sessions.push(await this.make(this.stages[stage], sites[stage].length ? this.withFilm(layers, stage, film.at(-1)!) : layers));
        [maps, means] = await step(sessions.at(-1)!, maps);
        if (this.every || stage === this.stages.length - 1) pooled.push(means);
      }
      maps.forEach((map) => map.dispose());
    } catch (error) {
      for (const session of sessions.slice(1)) await session.release();
      throw error;
    }
    return { film: concatenated(film), features: this.head.embed(pooled, images.length), embedding, network: this.chain(sessions) };
  }

  // z_G of these images alone: the mean over the rows of the set encoder.
  async embedding(images: Uint8Array[]): Promise<Float64Array> {
    const size = this.about.settings.embedding_size, sum = new Float64Array(size);
    if (!size) return sum;
    const session = await this.session("set_encoder");
    const whole = this.about.settings.set_encoder_norm === "context" ? images.length : chunkOf(images);
    for (let i = 0; i < images.length; i += whole) {
      const [input] = this.inputs(images.slice(i, i + whole), whole).map((part) => this.shrunk(part));
      const rows = (await session.run({ images: input }))[session.outputNames[0]].data as Float32Array;
      rows.forEach((value, j) => { sum[j % size] += value; });
    }
    return sum.map((value) => value / images.length);
  }

  // Stem and stages with a task's FiLM in their weights.
  async network(film: Float32Array, size: number): Promise<Network> {
    const weights = this.weightsWith(film, size), sessions = [await this.session("stem")];
    for (const name of this.stages) sessions.push(await this.make(name, weights));
    return this.chain(sessions);
  }

  // The sessions of stem and stages, one behind the other; the stem is everybody's.
  private chain([stem, ...stages]: InferenceSession[]): Network {
    let running: Promise<unknown> = Promise.resolve();
    const all = async (images: Uint8Array[]) => {
      const rows: Float64Array[] = [];
      for (const input of this.inputs(images)) {
        const pooled: Float32Array[] = [], count = input.dims[0];
        let [maps] = await step(stem, [input]);
        for (const stage of stages) {
          const [next, means] = await step(stage, maps);
          maps = next;
          if (this.every || stage === stages.at(-1)) pooled.push(means);
        }
        maps.forEach((map) => map.dispose());
        rows.push(...this.head.embed(pooled, count));
      }
      return rows;
    };
    const run = (images: Uint8Array[]) => {
      const found = all(images);
      running = Promise.allSettled([running, found]);
      return found;
    };
    return { run, release: async () => {
      await running;
      for (const stage of stages) await stage.release();
    } };
  }

  // The numbers of stem and stages with FiLM.
  weightsWith(film: Float32Array, size: number): Weights {
    const layers = this.layersAt(size), weights: Weights = new Map(layers);
    let place = 0;
    this.about.sites.forEach((sites, stage) => {
      const count = 2 * sites.reduce((sum, [, n]) => sum + n, 0);
      for (const [name, value] of this.withFilm(layers, stage, film.subarray(place, place + count))) weights.set(name, value);
      place += count;
    });
    return weights;
  }

  graph(name: string): Graph { return this.graphs.get(name)!; }

  // The numbers of stem and stages without FiLM, with the share of LoRA terms that images of this size have: all up to
  // 128 pixels, `lora_large` from 224 on.
  private layersAt(size: number): Weights {
    const share = 1 + ((this.about.settings.lora_large ?? 1) - 1) * Math.min(Math.max(size - 128, 0) / 96, 1);
    if (this.adapted?.share !== share) {
      const layers: Weights = new Map(this.frozen);
      for (const [layer, { outer, inner, scale }] of this.lora) {
        const { shape, data } = this.frozen.get(`${layer}.weight`)!, [rows, columns] = shape, rank = outer.length / rows;
        const sum = Float64Array.from(data as Float32Array);
        for (let o = 0; o < rows; o++) {
          for (let r = 0; r < rank; r++) {
            const factor = share * scale[o] * outer[o * rank + r];
            for (let i = 0; i < columns; i++) sum[o * columns + i] += factor * inner[r * columns + i];
          }
        }
        layers.set(`${layer}.weight`, { shape, data: Float32Array.from(sum) });
      }
      this.adapted = { share, layers };
    }
    return this.adapted.layers;
  }

  // weight * gamma, bias * gamma + beta
  private withFilm(every: Weights, stage: number, film: Float32Array): Weights {
    const start = `${this.stages[stage]}.`, layers: Weights = new Map([...every].filter(([name]) => name.startsWith(start)));
    let place = 0;
    for (const [layer, channels] of this.about.sites[stage]) {
      const gamma = film.subarray(place, place + channels), beta = film.subarray(place + channels, place + 2 * channels);
      const weight = layers.get(`${layer}.weight`)!, bias = layers.get(`${layer}.bias`)!, each = weight.data.length / channels;
      layers.set(`${layer}.weight`, { shape: weight.shape, data: (weight.data as Float32Array).map((value, i) => value * gamma[Math.floor(i / each)]) });
      layers.set(`${layer}.bias`, { shape: bias.shape, data: (bias.data as Float32Array).map((value, i) => Math.fround(value * gamma[i]) + beta[i]) });
      place += 2 * channels;
    }
    return layers;
  }

  private session(name: string): Promise<InferenceSession> {
    let weights = name === "stem" ? this.frozen : this.state; // the stem has no LoRA terms
    if (name.startsWith("film.")) {
      const stage = name.slice(5), starts = [`adaptation.stage_encoders.${stage}.`, `adaptation.generators.${stage}.`];
      weights = new Map([...this.state].filter(([key]) => starts.some((start) => key.startsWith(start))));
    }
    if (!this.fixed.has(name)) this.fixed.set(name, this.make(name, weights));
    return this.fixed.get(name)!;
  }

  private make(name: string, weights: Weights): Promise<InferenceSession> {
    const graph = this.graphs.get(name)!;
    const maps = ["n", "c", "h", "w"];
    const inputs: Port[] = graph.inputs.map((port) => ({ name: port, shape: SHAPES[port] ?? maps }));
    const outputs: Port[] = graph.outputs.map((port) => ({ name: port, shape: port.endsWith(".map") ? maps : port === "film" ? ["f"] : ["n", "c"] }));
    return this.runtime.open(writeModel(graph, used(weights, graph.nodes), inputs, outputs), graph.outputs.filter((port) => port.endsWith(".map")));
  }

  // Normalised images (n, 3, S, S), chunk by chunk.
  private inputs(images: Uint8Array[], chunk = chunkOf(images)): Tensor[] {
    const { mean, std } = this.about.normalisation, found: Tensor[] = [];
    for (let i = 0; i < images.length; i += chunk) {
      const part = images.slice(i, i + chunk), plane = part[0].length / 3, side = Math.sqrt(plane);
      const data = new Float32Array(part.length * 3 * plane);
      part.forEach((pixels, n) => {
        for (let c = 0; c < 3; c++) {
          const away = Math.fround(mean[c % mean.length]), by = Math.fround(std[c % std.length]), start = (3 * n + c) * plane;
          for (let j = 0; j < plane; j++) data[start + j] = Math.fround(pixels[3 * j + c] - away) / by;
        }
      });
      found.push(new this.runtime.ort.Tensor(data, [part.length, 3, side, side]));
    }
    return found;
  }

  // The mean over what each pixel of the smaller image covers (area interpolation).
  private shrunk(images: Tensor): Tensor {
    const size = this.about.set_encoder_size;
    const [n, channels, side] = images.dims as number[];
    if (size === null || side <= size) return images;
    const from = images.data as Float32Array, out = new Float32Array(n * channels * size * size);
    const covers = Array.from({ length: size }, (_, i) => [Math.floor((i * side) / size), Math.ceil(((i + 1) * side) / size)]);
    for (let plane = 0; plane < n * channels; plane++) {
      covers.forEach(([top, bottom], y) => covers.forEach(([left, right], x) => {
        let sum = 0;
        for (let v = top; v < bottom; v++) for (let u = left; u < right; u++) sum += from[(plane * side + v) * side + u];
        out[(plane * size + y) * size + x] = sum / ((bottom - top) * (right - left));
      }));
    }
    return new this.runtime.ort.Tensor(out, [n, channels, size, size]);
  }
}

// Chunk by chunk: maps for the next stage, and their means, all in a row. What went in is not needed any more.
async function step(session: InferenceSession, given: Tensor[]): Promise<[Tensor[], Float32Array]> {
  const maps: Tensor[] = [], means: Float32Array[] = [], [map, mean] = session.outputNames;
  for (const part of given) {
    const found = await session.run({ [session.inputNames[0]]: part });
    part.dispose();
    maps.push(found[map] as Tensor);
    means.push(found[mean].data as Float32Array);
  }
  return [maps, concatenated(means)];
}

const chunkOf = (images: Uint8Array[]) => Math.max(1, Math.floor((3 * PIXELS) / (images[0]?.length ?? 1)));

function used(weights: Weights, nodes: Uint8Array): [string, Values][] {
  return mentions(nodes, [...weights.keys()]).map((name) => [name, weights.get(name)!]);
}

function concatenated(parts: Float32Array[]): Float32Array {
  const out = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    out.set(part, place);
    place += part.length;
  }
  return out;
}
