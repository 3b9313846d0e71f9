// A fitted task as one ONNX file, pixels of any size in, probabilities out: the port of `runtime/export.py`.

import { unit } from "./head";
import { mentions, node, writeModel, type Values } from "./onnx";
import { EASE, FLAT, type FittedTask, MIDDLE, STEEP, commonPart } from "./task";
import { joined } from "./tensors";

const FLOAT = 1; // the number of this type in ONNX
const LEANING = 1 / 64; // of a grey: more than onnxruntime's `Resize` is off by

export function onnxBytes(fitted: FittedTask, more: Record<string, string> = {}): Uint8Array {
  const { engine, task, classifier } = fitted, { head, about } = engine;
  const nodes: Uint8Array[] = [], tensors = new Map<string, Values>();
  const tensor = (shape: number[], data: ArrayLike<number>) => {
    const name = `task.${tensors.size}`;
    tensors.set(name, { shape, data: Float32Array.from(data) });
    return name;
  };
  const whole = (...values: number[]) => {
    const name = `task.${tensors.size}`;
    tensors.set(name, { shape: [values.length], data: BigInt64Array.from(values, BigInt) });
    return name;
  };
  let count = 0;
  const add = (kind: string, inputs: string[], attributes = {}, to = `task/${++count}`) => {
    nodes.push(node(kind, inputs, [to], attributes));
    return to;
  };
  const row = (values: Float64Array) => tensor([values.length], values);
  // x @ rows.T
  const matrix = (x: string, rows: Float64Array[]) => {
    const flat = new Float32Array(rows.length * head.width);
    rows.forEach((values, k) => values.forEach((value, j) => { flat[j * rows.length + k] = value; }));
    return add("MatMul", [x, tensor([head.width, rows.length], flat)]);
  };
  const unitOf = (x: string) => add("LpNormalization", [x], { axis: 1, p: 2 });

  // Pillow's resizing, then normalisation; roundings that lean to opposite sides stay within one grey
  let x = add("Cast", ["images"], { to: FLOAT });
  const side = whole(task.imageSize);
  for (const [axis, half] of [[3, 0.5 + LEANING], [2, 0.5 - LEANING]]) {
    x = add("Resize", [x, "", "", side], { mode: "linear", antialias: 1, exclude_outside: 1, axes: [axis], coordinate_transformation_mode: "half_pixel" });
    x = add("Floor", [add("Add", [x, tensor([], [half])])]);
  }
  const { mean, std } = about.normalisation;
  add("Div", [add("Sub", [x, tensor([1, mean.length, 1, 1], mean)]), tensor([1, std.length, 1, 1], std)], {}, engine.graph("stem").inputs[0]);
  const kept: Uint8Array[] = [];
  for (const name of ["stem", ...engine.stages]) {
    nodes.push(engine.graph(name).nodes);
    kept.push(engine.graph(name).tensors);
  }
  const pooled = (engine.every ? engine.stages : engine.stages.slice(-1)).map((name) => unitOf(`${name}.pooled`));
  const features = add("Concat", pooled, { axis: 1 });
  const v = add("Mul", [add("Sub", [features, row(classifier.centre)]), row(classifier.weight)]);
  const logits = add("Add", [add("Add", [matrix(v, classifier.regression.list), matrix(unitOf(v), classifier.prototypes.list)]), row(classifier.bias)]);
  const calibrated = add("Div", [logits, tensor([], [fitted.temperature])]);
  add("Softmax", [task.prior ? add("Add", [calibrated, row(task.prior)]) : calibrated], { axis: 1 }, "probabilities");
  if (task.ease && task.names.length > 1) {
    const last = head.groups[head.groups.length - 1], taken = task.ease.map((value) => EASE * value);
    const present = add("ReduceLogSumExp", [add("Sub", [logits, row(taken)]), whole(1)], { keepdims: 0 });
    const flat = add("ReduceL1", [pooled[pooled.length - 1], whole(1)], { keepdims: 0 });
    const there = add("Add", [present, add("Mul", [flat, tensor([], [FLAT / Math.sqrt(last)])])]);
    const share = add("Sigmoid", [add("Div", [add("Sub", [tensor([], [MIDDLE]), there]), tensor([], [STEEP])])]);
    add("Mul", [share, tensor([], [2])], {}, "novelty");
  } else {
    const common = commonPart(task.statistics.means);
    const means = task.statistics.means.map((values) => unit(values.map((value, j) => (value - common[j]) * head.emphasis[j])));
    const near = matrix(unitOf(add("Mul", [add("Sub", [features, row(common)]), row(head.emphasis)])), means);
    add("Sub", [tensor([], [1]), add("ReduceMax", [near, whole(1)], { keepdims: 0 })], {}, "novelty");
  }

  const all = joined(nodes), weights = engine.weightsWith(task.film, task.imageSize);
  const used: [string, Values][] = mentions(all, [...weights.keys()]).map((name) => [name, weights.get(name)!]);
  const metadata: Record<string, string> = {
    format: "cnaps-classifier", version: "2", classes: JSON.stringify(task.names), image_size: String(task.imageSize),
    input: "uint8 RGB, (batch, 3, H, W) of any size, upright", model: about.fingerprint,
    ...(task.threshold === null ? {} : { threshold: task.threshold.toPrecision(6) }), ...more,
  };
  return writeModel({ nodes: all, tensors: joined(kept) }, [...used, ...tensors], [{ name: "images", shape: ["batch", 3, "height", "width"], kind: "uint8" }],
    [{ name: "probabilities", shape: ["batch", task.names.length] }, { name: "novelty", shape: ["batch"] }], metadata);
}
