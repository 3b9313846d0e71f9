// safetensors files, and numbers of half precision: what a model and a task are stored in.

import { InputError } from "./errors";

export type Numbers = Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array | Uint16Array;
export interface Tensor {
  kind: string; // as safetensors names it: F16 (kept as Uint16Array), F32, F64, I64, I32, U8
  shape: number[];
  data: Numbers;
}

const KINDS: Record<string, { make: (buffer: ArrayBuffer) => Numbers; bytes: number; numpy: string }> = {
  F64: { make: (b) => new Float64Array(b), bytes: 8, numpy: "float64" },
  I64: { make: (b) => new BigInt64Array(b), bytes: 8, numpy: "int64" },
  F32: { make: (b) => new Float32Array(b), bytes: 4, numpy: "float32" },
  I32: { make: (b) => new Int32Array(b), bytes: 4, numpy: "int32" },
  F16: { make: (b) => new Uint16Array(b), bytes: 2, numpy: "float16" },
  U8: { make: (b) => new Uint8Array(b), bytes: 1, numpy: "uint8" },
};
const ORDER = ["F64", "I64", "F32", "I32", "F16", "U8"]; // the widest first, so that all are aligned

export const f32 = (shape: number[], data: ArrayLike<number>): Tensor => ({ kind: "F32", shape, data: Float32Array.from(data) });
export const f64 = (shape: number[], data: ArrayLike<number>): Tensor => ({ kind: "F64", shape, data: Float64Array.from(data) });

export interface Stored {
  metadata: Record<string, string>;
  tensors: Map<string, Tensor>;
}

export function readSafetensors(bytes: Uint8Array): Stored {
  const damaged = new InputError("the file is damaged or no task file");
  if (bytes.length < 8) throw damaged;
  const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (size > bytes.length - 8 || size > 100_000_000) throw damaged;
  let header: Record<string, any>;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + size)));
  } catch {
    throw damaged;
  }
  const tensors = new Map<string, Tensor>();
  for (const [name, about] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const kind = KINDS[about.dtype];
    const [start, end] = about.data_offsets ?? [];
    const shape: number[] = about.shape;
    const count = Array.isArray(shape) ? shape.reduce((a, b) => a * b, 1) : -1;
    if (!kind || !(start >= 0 && end >= start && 8 + size + end <= bytes.length) || (end - start) !== count * kind.bytes) throw damaged;
    tensors.set(name, { kind: about.dtype, shape, data: kind.make(bytes.slice(8 + size + start, 8 + size + end).buffer) });
  }
  return { metadata: header.__metadata__ ?? {}, tensors };
}

export function writeSafetensors({ metadata, tensors }: Stored): Uint8Array {
  const names = [...tensors.keys()].sort((a, b) => {
    const by = ORDER.indexOf(tensors.get(a)!.kind) - ORDER.indexOf(tensors.get(b)!.kind);
    return by || (a < b ? -1 : 1);
  });
  const header: Record<string, unknown> = { __metadata__: metadata };
  let place = 0;
  for (const name of names) {
    const { kind, shape, data } = tensors.get(name)!;
    header[name] = { dtype: kind, shape, data_offsets: [place, place + data.byteLength] };
    place += data.byteLength;
  }
  let text = JSON.stringify(header);
  const length = new TextEncoder().encode(text).length;
  text += " ".repeat((8 - (length % 8)) % 8);
  const head = new TextEncoder().encode(text);
  const out = new Uint8Array(8 + head.length + place);
  new DataView(out.buffer).setBigUint64(0, BigInt(head.length), true);
  out.set(head, 8);
  let at = 8 + head.length;
  for (const name of names) {
    const { data } = tensors.get(name)!;
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return out;
}

// SHA-256 of the description and of every tensor with its kind and shape, as `runtime/taskfile.py` takes it.
export async function digestOf(about: string, tensors: Map<string, Tensor>): Promise<string> {
  const encode = (text: string) => new TextEncoder().encode(text);
  const parts: Uint8Array[] = [encode(about)];
  for (const name of [...tensors.keys()].sort()) {
    const { kind, shape, data } = tensors.get(name)!;
    const sizes = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
    parts.push(encode(`${name} torch.${KINDS[kind].numpy} ${sizes}`), new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  }
  return sha256(joined(parts));
}

export async function sha256(bytes: Uint8Array): Promise<string> {
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>));
  return [...found].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function joined(parts: Uint8Array[]): Uint8Array {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let place = 0;
  for (const part of parts) {
    out.set(part, place);
    place += part.length;
  }
  return out;
}

// Numbers of a tensor as single or double precision, whatever they are stored as.
export function asFloat32({ kind, data }: Tensor): Float32Array {
  if (kind === "F32") return data as Float32Array;
  if (kind === "F16") return Float32Array.from(data as Uint16Array, fromHalf);
  return Float32Array.from(data as ArrayLike<number | bigint>, Number);
}
export function asFloat64(tensor: Tensor): Float64Array {
  return tensor.kind === "F64" ? (tensor.data as Float64Array) : tensor.kind === "I64"
    ? Float64Array.from(tensor.data as BigInt64Array, Number) : Float64Array.from(asFloat32(tensor));
}

const view = new DataView(new ArrayBuffer(4));

export function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

// Rounded to the nearest, ties to even, as numpy does.
export function toHalf(value: number): number {
  view.setFloat32(0, value);
  const bits = view.getUint32(0), sign = (bits >>> 16) & 0x8000, size = Math.abs(Math.fround(value));
  if (Number.isNaN(size)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | roundEven(size * 2 ** 24); // 1024 of them are the smallest normal number
  const exponent = ((bits >>> 23) & 255) - 127;
  return sign | (((exponent + 15) << 10) + roundEven((size / 2 ** exponent - 1) * 1024));
}

function roundEven(value: number): number {
  const low = Math.floor(value), rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
}
