// psi_w: from class statistics to a classifier; the ridge head of `maths/heads.py`, and leave-one-out in closed form.

import { InputError } from "./errors";
import { Matrix, dot, identity, norm, solve, times, timesTransposed, transposed } from "./linear";

export interface Statistics {
  counts: number[];
  means: Float64Array[]; // (C, d)
  scatter: Float64Array[][]; // for each class F (r, d), F'F = sum (x - mean)(x - mean)'
}
export interface Classifier { regression: Matrix; prototypes: Matrix; centre: Float64Array; weight: Float64Array; bias: Float64Array }

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));
const SMALL = 1e-12;

export function unit(row: Float64Array): Float64Array {
  const length = Math.max(norm(row), SMALL);
  return row.map((value) => value / length);
}

export class Head {
  readonly width: number;
  readonly emphasis: Float64Array; // the learned weight of each group, for each feature (d,)
  private readonly shares: Float64Array; // of the centre that is taken away, for each feature (d,)
  private readonly ridge: number;
  private readonly temperature: [number, number];

  constructor(name: string, readonly groups: number[], numbers: Map<string, Float32Array>) {
    if (name !== "ridge") throw new InputError(`the page runs models with the ridge head, and this one has ${name}: use the studio or the command line`);
    const known = ["log_weight", "centring", "log_ridge", "log_temperature"];
    const more = [...numbers.keys()].filter((key) => !known.includes(key));
    if (more.length) throw new InputError(`this page is older than the model: it does not know the head's ${more.join(", ")}`);
    this.width = groups.reduce((a, b) => a + b, 0);
    const spread = (values: number[]) => Float64Array.from(groups.flatMap((size, i) => Array<number>(size).fill(values[i])));
    this.emphasis = spread([...numbers.get("log_weight")!].map(Math.exp));
    this.shares = spread([...numbers.get("centring")!].map(sigmoid));
    this.ridge = Math.exp(numbers.get("log_ridge")![0]);
    const [a, b] = numbers.get("log_temperature")!;
    this.temperature = [Math.exp(a), Math.exp(b)];
  }

  // Pooled outputs of stages, each (n, c), as features (n, d): each group of unit length.
  embed(pooled: Float32Array[], n: number): Float64Array[] {
    return Array.from({ length: n }, (_, i) => {
      const row = new Float64Array(this.width);
      let place = 0;
      pooled.forEach((part, g) => {
        row.set(unit(Float64Array.from(part.subarray(i * this.groups[g], (i + 1) * this.groups[g]))), place);
        place += this.groups[g];
      });
      return row.map(Math.fround); // features are single precision on every side
    });
  }

  classifier({ counts, means, scatter }: Statistics): Classifier {
    const ways = means.length, weight = this.emphasis;
    const centre = meanOf(means).map((value, j) => value * this.shares[j]);
    const prototypes = means.map((mean) => mean.map((value, j) => (value - centre[j]) * weight[j]));
    const average = counts.reduce((a, b) => a + b, 0) / ways, root = Math.sqrt(average);
    const within = scatter.flatMap((rows, k) => rows.map((row) => row.map((value, j) => value * weight[j] * Math.sqrt(average / counts[k]))));
    const spokes = prototypes.map((row) => row.map((value) => value * root));
    const rows = Matrix.of([...within, ...spokes], this.width);
    const wanted = identity(ways).map((value) => (value - 1 / ways) * root);
    let regression: Matrix;
    if (rows.rows > this.width) {
      const moment = withRidge(timesTransposed(transposed(rows), transposed(rows)), this.ridge);
      regression = transposed(solve(moment, times(transposed(Matrix.of(spokes)), wanted)));
    } else {
      const padded = new Matrix(rows.rows, ways);
      padded.data.set(wanted.data, within.length * ways);
      regression = times(transposed(solve(withRidge(timesTransposed(rows, rows), this.ridge), padded)), rows);
    }
    const [first, second] = this.temperature, middle = meanOf(means);
    const deviation = sumOver(scatter.flat(), (row) => squared(row, weight)), spread = sumOver(means, (mean) => squared(mean.map((value, j) => value - middle[j]), weight));
    const size = sumOver(prototypes, (row) => dot(row, row)) / ways;
    return {
      regression: regression.map((value) => value * first),
      prototypes: Matrix.of(prototypes.map((row) => unit(row).map((value) => value * second))),
      centre, weight, bias: fewShotBias(counts, deviation, spread, size, this.ridge, this.temperature),
    };
  }

  // Logits (N, C) of each example by a classifier of the others; NaN where it is alone in its class.
  async leftOut(features: Float64Array[], labels: number[], ways: number, breathe: () => Promise<void>): Promise<Float64Array[]> {
    const n = features.length, counts = Array<number>(ways).fill(0);
    for (const k of labels) counts[k]++;
    const weighted = features.map((row) => row.map((value, j) => value * this.emphasis[j]));
    const grams = this.grams(weighted);
    await breathe();
    const ridge = (this.ridge / (n - 1)) * ways;
    const wanted = new Matrix(n, ways).map((_, i, k) => (labels[i] === k ? 1 : 0) - 1 / ways);
    const logits = features.map(() => new Float64Array(ways).fill(NaN));
    const trace = sumOver(features, (_, i) => grams[0].get(i, i));
    for (let k = 0; k < ways; k++) {
      if (counts[k] < 2) continue;
      const sizes = counts.map((count, other) => count - (other === k ? 1 : 0));
      const averages = new Matrix(ways, n).map((_, c, i) => (labels[i] === c ? 1 / sizes[c] : 0));
      const system = grams[0].map((value, i, j) => value + (i === j ? ridge * sizes[labels[i]] : 0));
      const inverse = solve(system, identity(n)), answered = times(inverse, wanted), means = times(averages, grams[0]);
      await breathe();
      const ones = Float64Array.from(inverse.list, (row) => row.reduce((a, b) => a + b, 0));
      const total = ones.reduce((a, b) => a + b, 0);
      const onesWanted = times(Matrix.of([ones]), wanted).row(0);
      for (let i = 0; i < n; i++) {
        if (labels[i] !== k) continue;
        const around = without(grams, averages, means, k, i);
        const solved = times(Matrix.of([around.centre]), inverse).row(0);
        // the change of rank two lies along the ones and the centre: Woodbury
        const cross = dot(around.centre, ones) - 1, corner = dot(solved, around.centre) - around.length;
        const own = [ones[i], solved[i]], determinant = total * corner - cross * cross;
        const change = [(own[0] * corner - own[1] * cross) / determinant, (total * own[1] - cross * own[0]) / determinant];
        const diagonal = inverse.get(i, i) - own[0] * change[0] - own[1] * change[1];
        const solvedWanted = times(Matrix.of([solved]), wanted).row(0);
        const deviation = trace - grams[0].get(i, i) - sumOver(around.norms, (value, c) => value * sizes[c]);
        const bias = fewShotBias(sizes, deviation, around.spread, around.size, this.ridge, this.temperature);
        for (let c = 0; c < ways; c++) {
          const answer = answered.get(i, c) - change[0] * onesWanted[c] - change[1] * solvedWanted[c];
          logits[i][c] = this.temperature[0] * (wanted.get(i, c) - answer / diagonal) + this.temperature[1] * around.cosines[c] + bias[c];
        }
      }
    }
    return logits;
  }

  // Inner products of all examples, without, once and twice with the share of centring.
  private grams(weighted: Float64Array[]): [Matrix, Matrix, Matrix] {
    return [0, 1, 2].map((power) => {
      const other = weighted.map((row) => row.map((value, j) => value * this.shares[j] ** power));
      return timesTransposed(Matrix.of(weighted), Matrix.of(other));
    }) as [Matrix, Matrix, Matrix];
  }
}

// Example i of class k beside class means and a centre that were made without it; `means` are averages @ kernel.
function without([kernel, crossed, squared]: [Matrix, Matrix, Matrix], averages: Matrix, means: Matrix, k: number, i: number) {
  const ways = averages.rows, n = averages.cols, weight = averages.get(k, i);
  const shares = new Float64Array(n);
  for (let j = 0; j < n; j++) for (let c = 0; c < ways; c++) if (j !== i) shares[j] += averages.get(c, j) / ways;
  const line = Matrix.of([shares]);
  const centre = times(line, crossed).row(0), length = dot(times(line, squared).row(0), shares);
  const itself = kernel.get(i, i), own = centre[i], norms: number[] = [], lengths: number[] = []; // of class means and of prototypes, squared
  const cosines = averages.list.map((average, c) => {
    const mean = means.row(c);
    let inner = mean[i], size = dot(mean, average), middle = dot(centre, average);
    if (c === k) {
      size += weight * (weight * itself - 2 * inner);
      inner -= weight * itself;
      middle -= weight * own;
    }
    norms.push(size);
    lengths.push(size - 2 * middle + length);
    const sizes = lengths[c] * (itself - 2 * own + length);
    return (inner - middle - own + length) / Math.sqrt(Math.max(sizes, 1e-24));
  });
  const spread = sumOver(norms, (value) => value) - ways * dot(times(line, kernel).row(0), shares);
  return { centre, length, cosines, norms, spread, size: sumOver(lengths, (value) => value) / ways };
}

const GIVEN_BACK = 0.6;

// What is added to the logit of each class by its number of examples, nothing if all have as many; see `maths/heads.py`.
function fewShotBias(counts: number[], deviation: number, spread: number, size: number, ridge: number, [first, second]: [number, number]): Float64Array {
  const ways = counts.length, total = sumOver(counts, (n) => n), freedom = total - ways;
  const within = deviation / (freedom > 1 ? freedom : 1), apart = spread / Math.max(ways - 1, 1);
  const between = Math.max(0, apart - (within * sumOver(counts, (n) => 1 / n)) / ways);
  const chance = Float64Array.from(counts, (n) => within / (within + between * n + SMALL)), least = Math.min(...chance);
  const seen = (total / ways) * apart, strength = (first * seen) / (seen + ridge) + second * (apart < size ? apart / (size + SMALL) : 1);
  return chance.map((value) => GIVEN_BACK * strength * (value - least));
}

const sumOver = <T>(list: T[], of: (item: T, i: number) => number) => list.reduce((sum, item, i) => sum + of(item, i), 0);
const squared = (row: Float64Array, weight: Float64Array) => row.reduce((sum, value, j) => sum + (value * weight[j]) ** 2, 0);

export function logitsOf({ regression, prototypes, centre, weight, bias }: Classifier, features: Float64Array): Float64Array {
  const v = features.map((value, j) => (value - centre[j]) * weight[j]), u = unit(v);
  return Float64Array.from({ length: regression.rows }, (_, k) => dot(v, regression.row(k)) + dot(u, prototypes.row(k)) + bias[k]);
}

function withRidge(a: Matrix, ridge: number): Matrix {
  for (let i = 0; i < a.rows; i++) a.data[i * a.cols + i] += ridge;
  return a;
}

function meanOf(rows: Float64Array[]): Float64Array {
  const sum = new Float64Array(rows[0].length);
  for (const row of rows) for (let j = 0; j < sum.length; j++) sum[j] += row[j] / rows.length;
  return sum;
}
