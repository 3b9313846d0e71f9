// Any image file becomes an upright square of RGB bytes, as Pillow makes it on the Python side.

import { InputError } from "./errors";

export interface Picture { width: number; height: number; data: Uint8ClampedArray | Uint8Array } // RGBA rows
const MOST = 100_000_000; // pixels
const SMALLEST = 4; // pixels of a side: below it there is nothing to see

export async function decode(file: Blob): Promise<ImageBitmap> {
  let found: ImageBitmap;
  try {
    found = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  } catch {
    throw new InputError(file.size ? "it is damaged, or no image that this browser can read" : "the file is empty");
  }
  const { width, height } = found;
  if (width * height > MOST || Math.min(width, height) < SMALLEST) {
    found.close();
    throw new InputError(`it has ${width} x ${height} pixels: ${width * height > MOST ? "too many" : "too small to show anything"}`);
  }
  return found;
}

export async function isJpeg(file: Blob): Promise<boolean> {
  return new Uint8Array(await file.slice(0, 2).arrayBuffer()).join() === "255,216";
}

// Transparency is laid over white.
export function pictureOf(source: ImageBitmap): Picture {
  const { width, height } = source;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0);
  return context.getImageData(0, 0, width, height);
}

// A square of `size`, RGB (size, size, 3), resized as Python does: in whole greys, rows and then columns.
export function toSquare(picture: Picture, size: number, jpeg = false): Uint8Array {
  const { data, width, height } = opened(picture, 2 * size, jpeg);
  return resizeColumns(resizeRows(data, width, height, size), size, height, size);
}

// What the size of a task's images depends on: the side of a square with as many pixels, and whether it is ink on a ground.
export interface Look { side: number; ink: boolean }

export function lookAt(picture: Picture, jpeg: boolean): Look {
  const { data, width, height } = opened(picture, 64, jpeg), grey: number[] = [];
  let colour = 0;
  for (let y = 0; y < 32; y++) {
    for (let x = 0; x < 32; x++) {
      const place = 3 * (Math.floor(((y + 0.5) * height) / 32) * width + Math.floor(((x + 0.5) * width) / 32));
      const [r, g, b] = data.subarray(place, place + 3);
      colour = Math.max(colour, Math.max(r, g, b) - Math.min(r, g, b));
      grey.push((r + g + b) / 3);
    }
  }
  const middle = median(grey), near = grey.filter((value) => Math.abs(value - middle) < 16).length / grey.length;
  return { side: Math.sqrt(picture.width * picture.height), ink: colour < 16 && near > 0.4 };
}

const LOOKED_AT = 16; // examples that decide about the size

// `auto` of `runtime/task.py` and `images/sizes.py`: as large as helps, and no larger.
export function chooseSize(sizes: number[], looks: Look[]): number {
  const step = Math.max(1, Math.floor(looks.length / LOOKED_AT)), seen = looks.filter((_, i) => i % step === 0);
  const side = median(seen.map((look) => look.side));
  const wanted = seen.filter(({ ink }) => ink).length > seen.length / 2 ? 96 : side < 48 ? 128 : side < 96 ? 160 : 224;
  return sizes.reduce((best, size) => (Math.abs(size - wanted) < Math.abs(best - wanted) ? size : best));
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// RGB rows; Python decodes a large JPEG file at a fraction of its size, with no side below `atLeast`.
function opened(picture: Picture, atLeast: number, jpeg: boolean): Picture {
  const share = Math.floor(Math.min(picture.width, picture.height) / atLeast);
  const step = jpeg ? [8, 4, 2].find((n) => share >= n) ?? 1 : 1;
  return step > 1 ? reduced(picture, step) : rgb(picture);
}

function rgb({ width, height, data }: Picture): Picture {
  const out = new Uint8Array(width * height * 3);
  for (let i = 0, j = 0; i < data.length; i += 4, j += 3) {
    out[j] = data[i];
    out[j + 1] = data[i + 1];
    out[j + 2] = data[i + 2];
  }
  return { width, height, data: out };
}

// Means over squares of `step` pixels, which is what a JPEG decoder makes at such a fraction, but for its roundings.
function reduced({ width, height, data }: Picture, step: number): Picture {
  const w = Math.ceil(width / step), h = Math.ceil(height / step), out = new Uint8Array(w * h * 3);
  for (let y = 0; y < h; y++) {
    for (let x = 0; x < w; x++) {
      for (let c = 0; c < 3; c++) {
        let sum = 0;
        for (let v = 0; v < step; v++) {
          const row = Math.min(height - 1, y * step + v) * width;
          for (let u = 0; u < step; u++) sum += data[(row + Math.min(width - 1, x * step + u)) * 4 + c];
        }
        out[(y * w + x) * 3 + c] = Math.floor(sum / (step * step) + 0.5);
      }
    }
  }
  return { width: w, height: h, data: out };
}

const BITS = 22; // of the fraction of a weight

// For each place of the result: where it begins to read, and whole-numbered weights of a triangle.
function weights(from: number, to: number): { first: number; factors: Int32Array }[] {
  const scale = from / to, support = Math.max(scale, 1);
  return Array.from({ length: to }, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(from, Math.trunc(centre + support + 0.5));
    const raw = Array.from({ length: last - first }, (_, k) => Math.max(0, 1 - Math.abs((k + first - centre + 0.5) / support)));
    const sum = raw.reduce((a, b) => a + b, 0);
    return { first, factors: Int32Array.from(raw, (value) => Math.trunc(0.5 + (value / sum) * 2 ** BITS)) };
  });
}

const HALF = 2 ** (BITS - 1);

function resizeRows(data: ArrayLike<number>, width: number, height: number, size: number): ArrayLike<number> {
  if (width === size) return data;
  const out = new Uint8Array(size * height * 3), plan = weights(width, size);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < size; x++) {
      const { first, factors } = plan[x];
      let place = (y * width + first) * 3, r = HALF, g = HALF, b = HALF;
      for (let k = 0; k < factors.length; k++, place += 3) {
        r += data[place] * factors[k];
        g += data[place + 1] * factors[k];
        b += data[place + 2] * factors[k];
      }
      const to = (y * size + x) * 3;
      out[to] = Math.min(255, r >> BITS);
      out[to + 1] = Math.min(255, g >> BITS);
      out[to + 2] = Math.min(255, b >> BITS);
    }
  }
  return out;
}

function resizeColumns(data: ArrayLike<number>, width: number, height: number, size: number): Uint8Array {
  if (height === size) return Uint8Array.from(data);
  const out = new Uint8Array(width * size * 3), plan = weights(height, size), sums = new Int32Array(width * 3);
  for (let y = 0; y < size; y++) {
    const { first, factors } = plan[y];
    sums.fill(HALF);
    for (let k = 0; k < factors.length; k++) {
      const row = (first + k) * width * 3, factor = factors[k];
      for (let i = 0; i < sums.length; i++) sums[i] += data[row + i] * factor;
    }
    for (let i = 0; i < sums.length; i++) out[y * width * 3 + i] = Math.min(255, sums[i] >> BITS);
  }
  return out;
}
