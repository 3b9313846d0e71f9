// ONNX files read and written by hand, as `runtime/onnx.py` does: a graph is nodes, tensors, inputs and outputs.

import { InputError } from "./errors";
import { joined } from "./tensors";

const OPSET = 20, IR_VERSION = 10;
const NODE = 1, TENSOR = 5, INPUT = 11, OUTPUT = 12; // fields of a graph
const TYPES = { float32: 1, uint8: 2, int64: 7 } as const;

export interface Graph { nodes: Uint8Array; tensors: Uint8Array; inputs: string[]; outputs: string[] }
export interface Port { name: string; shape: (number | string)[]; kind?: keyof typeof TYPES }
export interface Values { shape: number[]; data: Float32Array | BigInt64Array }
type Attribute = number | string | number[];

const encoder = new TextEncoder(), decoder = new TextDecoder();

export function readGraph(bytes: Uint8Array): Graph {
  const graph = [...fields(bytes)].find(([number]) => number === 7)?.[1];
  if (!graph) throw new InputError("a graph of the model is damaged");
  const parts = [...fields(graph)];
  const of = (kind: number) => parts.filter(([number]) => number === kind).map(([, value]) => value);
  const rows = (kind: number) => joined(of(kind).map((value) => block(kind, value)));
  return { nodes: rows(NODE), tensors: rows(TENSOR), inputs: of(INPUT).map(nameOf), outputs: of(OUTPUT).map(nameOf) };
}

export function readMetadata(bytes: Uint8Array): Map<string, string> {
  const found = new Map<string, string>();
  for (const [number, value] of fields(bytes)) {
    if (number !== 14) continue;
    const entry = new Map(fields(value));
    found.set(decoder.decode(entry.get(1)), decoder.decode(entry.get(2)));
  }
  return found;
}

export function writeModel(
  graph: Pick<Graph, "nodes" | "tensors">, tensors: Iterable<[string, Values]>, inputs: Port[], outputs: Port[],
  metadata: Record<string, string> = {},
): Uint8Array {
  const body = [graph.nodes, text(2, "cnaps"), graph.tensors];
  for (const [name, value] of tensors) body.push(block(TENSOR, tensor(value, name)));
  body.push(...inputs.map((port) => block(INPUT, portOf(port))), ...outputs.map((port) => block(OUTPUT, portOf(port))));
  const model = [number(1, IR_VERSION), text(2, "cnaps"), block(8, joined([text(1, ""), number(2, OPSET)])), block(7, joined(body))];
  for (const [key, value] of Object.entries(metadata)) model.push(block(14, joined([text(1, key), text(2, value)])));
  return joined(model);
}

export function node(kind: string, inputs: string[], outputs: string[], attributes: Record<string, Attribute> = {}): Uint8Array {
  const parts = [...inputs.map((name) => text(1, name)), ...outputs.map((name) => text(2, name)), text(4, kind)];
  for (const [name, value] of Object.entries(attributes)) parts.push(block(5, attribute(name, value)));
  return block(NODE, joined(parts));
}

// Whether the nodes of a graph mention a name.
export function mentions(nodes: Uint8Array, names: string[]): string[] {
  const read = new Set<string>();
  for (const [, one] of fields(nodes)) for (const [number, value] of fields(one)) if (number === 1) read.add(decoder.decode(value));
  return names.filter((name) => read.has(name));
}

function attribute(name: string, value: Attribute): Uint8Array {
  if (typeof value === "string") return joined([text(1, name), text(4, value), number(20, 3)]);
  if (typeof value === "number") return joined([text(1, name), number(3, value), number(20, 2)]);
  return joined([text(1, name), ...value.map((item) => number(8, item)), number(20, 7)]);
}

function tensor({ shape, data }: Values, name: string): Uint8Array {
  const kind = data instanceof BigInt64Array ? TYPES.int64 : TYPES.float32;
  const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return joined([...shape.map((n) => number(1, n)), number(2, kind), text(8, name), block(9, raw)]);
}

function portOf({ name, shape, kind = "float32" }: Port): Uint8Array {
  const sizes = shape.map((n) => block(1, typeof n === "string" ? text(2, n) : number(1, n)));
  const about = joined([number(1, TYPES[kind]), block(2, joined(sizes))]);
  return joined([text(1, name), block(2, block(1, about))]);
}

const number = (field: number, value: number) => joined([varint((field << 3) | 0), varint(value)]);
const text = (field: number, value: string) => block(field, encoder.encode(value));
const block = (field: number, value: Uint8Array) => joined([varint((field << 3) | 2), varint(value.length), value]);

function varint(value: number): Uint8Array {
  const out: number[] = [];
  while (value > 127) {
    out.push((value % 128) | 128);
    value = Math.floor(value / 128);
  }
  return Uint8Array.from([...out, value]);
}

// Numbers and contents of the fields of a message; plain numbers are passed over.
export function* fields(bytes: Uint8Array): Generator<[number, Uint8Array]> {
  let place = 0;
  const read = () => {
    let value = 0, factor = 1;
    for (;;) {
      if (place >= bytes.length || factor > 2 ** 63) throw new InputError("an ONNX file is damaged");
      const byte = bytes[place++];
      value += (byte & 127) * factor;
      factor *= 128;
      if (byte < 128) return value;
    }
  };
  while (place < bytes.length) {
    const key = read(), wire = key % 8;
    if (wire === 0) read();
    else if (wire === 1 || wire === 5) place += wire === 1 ? 8 : 4;
    else if (wire === 2) {
      const size = read();
      if (place + size > bytes.length) throw new InputError("an ONNX file is damaged");
      yield [Math.floor(key / 8), bytes.subarray(place, place + size)];
      place += size;
    } else throw new InputError("an ONNX file is damaged");
  }
}

const nameOf = (message: Uint8Array) => decoder.decode([...fields(message)].find(([number]) => number === 1)?.[1]);
