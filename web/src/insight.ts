// What follows from probabilities and features: what to label next, which labels look wrong, the map.

import { Matrix, argsort, dot, norm, timesTransposed } from "./linear";

// The `n` rows to label next: doubtful, and unlike what was taken before; see `runtime/suggest.py`.
export function choose(probabilities: Float64Array[], features: Float64Array[], n: number): number[] {
  const scores = probabilities.map((row) => {
    const entropy = row.reduce((sum, p) => sum - p * Math.log(Math.min(1, Math.max(p, 1e-12))), 0);
    return Math.min(1, Math.max(0, entropy / Math.log(Math.max(row.length, 2))));
  });
  const lengths = features.map((row) => Math.max(norm(row), 1e-12));
  const novelty = scores.map(() => 1), taken: number[] = [];
  while (taken.length < Math.min(n, scores.length)) {
    const worth = scores.map((score, i) => (taken.includes(i) ? -1 : score * novelty[i] + 1e-6 * score));
    const best = worth.indexOf(Math.max(...worth));
    taken.push(best);
    features.forEach((row, i) => {
      const cosine = dot(row, features[best]) / lengths[i] / lengths[best];
      novelty[i] = Math.min(novelty[i], Math.min(1, Math.max(0, 1 - cosine)));
    });
  }
  return taken;
}

// Examples for which another class is more probable than their own by 0.3, the worst fit first.
export function suspects(fit: Float64Array[], labels: number[], atLeast = 0.3): [number, number][] {
  const own = fit.map((row, i) => row[labels[i]]);
  return argsort(own.map((p) => (Number.isNaN(p) ? Infinity : p))).map((i): [number, number] => [i, best(fit[i])])
    .filter(([i, k]) => fit[i][k] - own[i] >= atLeast);
}

const best = (row: Float64Array) => row.reduce((at, p, k) => (p > row[at] ? k : at), 0);

// The share of right answers, with a 95% interval (Wilson's).
export function scored(fit: Float64Array[], labels: number[]) {
  const judged = fit.map((_, i) => i).filter((i) => !fit[i].some(Number.isNaN));
  const total = judged.length, correct = judged.filter((i) => best(fit[i]) === labels[i]).length, [low, high] = wilson(correct, total);
  return { correct, total, low, high };
}

// The same over examples that were left out in turn, and whether they are enough to say so.
export function leftOutScore(fit: Float64Array[], labels: number[]) {
  const counts = new Map<number, number>(), found = scored(fit, labels);
  for (const k of labels) counts.set(k, (counts.get(k) ?? 0) + 1);
  return { ...found, enough: found.total >= 10 && Math.min(...counts.values()) >= 3 };
}

// How often each class (rows) was answered as each (columns).
export function confusion(truths: number[], answers: number[], ways: number): number[][] {
  const counts = Array.from({ length: ways }, () => Array<number>(ways).fill(0));
  truths.forEach((k, i) => { counts[k][answers[i]]++; });
  return counts;
}

// What was taken for what when it was left out, and the surest of the wrong answers.
export function mistakes(fit: Float64Array[], labels: number[], examples: string[], keys: string[]) {
  const judged = fit.map((_, i) => i).filter((i) => !fit[i].some(Number.isNaN)), answers = judged.map((i) => best(fit[i]));
  const counts = confusion(judged.map((i) => labels[i]), answers, keys.length);
  const wrong = judged.map((i, j) => ({ id: examples[i], answer: keys[answers[j]], probability: fit[i][answers[j]], right: answers[j] === labels[i] }));
  return {
    confusion: counts.flatMap((row, k) => row.map((count, j): [string, string, number] => [keys[k], keys[j], count])).filter(([, , count]) => count > 0),
    mistakes: wrong.filter(({ right }) => !right).sort((a, b) => b.probability - a.probability).slice(0, 24),
  };
}

export function wilson(correct: number, total: number): [number, number] {
  if (total === 0) return [0, 1];
  const z = 1.959963984540054, share = correct / total, z2 = (z * z) / total;
  const middle = share + z2 / 2, half = z * Math.sqrt((share * (1 - share)) / total + z2 / (4 * total));
  return [Math.max(0, (middle - half) / (1 + z2)), Math.min(1, (middle + half) / (1 + z2))];
}

// Features as points of a plane within -1..1, by their two principal components.
export function project(features: Float64Array[]): [number, number][] {
  const n = features.length;
  const mean = features[0].map((_, j) => features.reduce((sum, row) => sum + row[j], 0) / n);
  const centred = Matrix.of(features.map((row) => row.map((value, j) => value - mean[j])));
  const gram = timesTransposed(centred, centred), found: Float64Array[] = [];
  for (let axis = 0; axis < Math.min(2, n); axis++) {
    let vector = Float64Array.from({ length: n }, (_, i) => Math.sin(1 + i * (axis + 1))), value = 0;
    for (let round = 0; round < 300; round++) { // power iteration, away from the axes that were found
      let next = Float64Array.from(gram.list, (row) => dot(row, vector));
      for (const other of found) {
        const along = dot(next, other) / Math.max(dot(other, other), 1e-300);
        next = next.map((x, i) => x - along * other[i]);
      }
      value = norm(next);
      const gap = Math.max(...next.map((x, i) => Math.abs(x / Math.max(value, 1e-300) - vector[i])));
      vector = next.map((x) => x / Math.max(value, 1e-300));
      if (gap < 1e-9) break;
    }
    found.push(vector.map((x) => x * Math.sqrt(value)));
  }
  const axes = [0, 1].map((axis) => {
    const points = found[axis] ?? new Float64Array(n);
    const widest = points.reduce((most, x) => (Math.abs(x) > Math.abs(most) ? x : most), 0);
    const signed = points.map((x) => x * (widest < 0 ? -1 : 1)), middle = (Math.min(...signed) + Math.max(...signed)) / 2;
    return signed.map((x) => x - middle);
  });
  const size = Math.max(1e-9, ...axes.flatMap((axis) => [...axis].map(Math.abs)));
  return Array.from({ length: n }, (_, i) => [round3(axes[0][i] / size), round3(axes[1][i] / size)]);
}

const round3 = (x: number) => Math.round(x * 1000) / 1000;
