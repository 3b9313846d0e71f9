// Any image file becomes an upright square of RGB bytes, as Pillow makes it on the Python side.

import { InputError } from "./errors";
import { decodeJpeg } from "./jpeg";

// RGB rows; of a large JPEG file one row and column of `step`. `whole` are the sides of the file's own picture.
export interface Picture { width: number; height: number; data: Uint8Array; step: number; whole: [number, number]; jpeg: boolean }
const MOST = 100_000_000; // pixels
const SMALLEST = 4; // pixels of a side: below it there is nothing to see

export async function openImage(file: Blob, atLeast: number): Promise<Picture> {
  const jpeg = new Uint8Array(await file.slice(0, 2).arrayBuffer()).join() === "255,216";
  const found = jpeg ? decodeJpeg(new Uint8Array(await file.arrayBuffer()), atLeast) : null;
  return checked(found ?? { ...pictureOf(await decode(file)), jpeg });
}

async function decode(file: Blob): Promise<ImageBitmap> {
  try {
    return await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  } catch {
    throw new InputError(file.size ? "it is damaged, or no image that this browser can read" : "the file is empty");
  }
}

function checked(picture: Picture): Picture {
  const [width, height] = picture.whole, many = width * height > MOST;
  if (many || Math.min(width, height) < SMALLEST) throw new InputError(`it has ${width} x ${height} pixels: ${many ? "too many" : "too small to show anything"}`);
  return picture;
}

// Transparency is laid over white. The bitmap is used up.
export function pictureOf(source: ImageBitmap): Picture {
  const { width, height } = source, about = { width, height, step: 1, whole: [width, height] as [number, number], jpeg: false };
  if (width * height > MOST) return { ...about, data: new Uint8Array() }; // which is refused
  const canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(source, 0, 0);
  source.close();
  const { data } = context.getImageData(0, 0, width, height), rgb = new Uint8Array(width * height * 3);
  for (let i = 0, j = 0; i < data.length; i += 4, j += 3) {
    rgb[j] = data[i];
    rgb[j + 1] = data[i + 1];
    rgb[j + 2] = data[i + 2];
  }
  return { ...about, data: rgb };
}

// The small picture that people see.
export async function thumbnail({ width, height, data }: Picture, side: number): Promise<Blob> {
  const pixels = new ImageData(width, height), scale = Math.min(1, side / Math.max(width, height));
  for (let i = 0, j = 0; j < data.length; i += 4, j += 3) {
    pixels.data[i] = data[j];
    pixels.data[i + 1] = data[j + 1];
    pixels.data[i + 2] = data[j + 2];
    pixels.data[i + 3] = 255;
  }
  const whole = await createImageBitmap(pixels);
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))), context = canvas.getContext("2d")!;
  context.imageSmoothingQuality = "high";
  context.drawImage(whole, 0, 0, canvas.width, canvas.height);
  whole.close();
  return canvas.convertToBlob({ type: scale < 1 ? "image/jpeg" : "image/png", quality: 0.88 });
}

// Which part of a JPEG file's rows and columns Python decodes, with no side below `atLeast`.
export function stepOf(width: number, height: number, atLeast: number): number {
  const share = Math.floor(Math.min(width, height) / atLeast);
  return [8, 4, 2].find((step) => share >= step) ?? 1;
}

// A square of `size`, RGB (size, size, 3), resized as Pillow does: rows, then columns, in whole greys.
export function toSquare({ data, width, height }: Picture, size: number): Uint8Array {
  return resizeColumns(resizeRows(data, width, height, size), size, height, size);
}

// What the size of a task's images depends on: the side of a square with as many pixels, and whether it is ink on a ground.
export interface Look { side: number; ink: boolean }

export function lookAt({ width, height, data, step, whole, jpeg }: Picture): Look {
  // Python looks at fewer pixels of a JPEG file, each of which is the mean of a square of `size` here
  const size = jpeg ? stepOf(...whole, 64) / step : 1, grey: number[] = [];
  const start = (i: number, side: number) => Math.floor(((i + 0.5) * Math.ceil(side / size)) / 32) * size;
  let colour = 0;
  for (let y = 0; y < 32; y++) {
    for (let x = 0; x < 32; x++) {
      const sum = [0, 0, 0];
      for (let v = 0; v < size; v++) {
        for (let u = 0; u < size; u++) {
          const place = 3 * (Math.min(height - 1, start(y, height) + v) * width + Math.min(width - 1, start(x, width) + u));
          for (let c = 0; c < 3; c++) sum[c] += data[place + c];
        }
      }
      const [r, g, b] = sum.map((value) => Math.round(value / (size * size)));
      colour = Math.max(colour, Math.max(r, g, b) - Math.min(r, g, b));
      grey.push((r + g + b) / 3);
    }
  }
  const middle = median(grey), near = grey.filter((value) => Math.abs(value - middle) < 16).length / grey.length;
  return { side: Math.sqrt(whole[0] * whole[1]), ink: colour < 16 && near > 0.4 };
}

export const SIZES = [96, 128, 160, 224]; // before a model says which it has been trained for
const LOOKED_AT = 16; // examples that decide about the size

// `auto` of `runtime/task.py` and `images/sizes.py`: as large as helps, and no larger.
export function chooseSize(looks: Look[], sizes = SIZES): number {
  const step = Math.max(1, Math.floor(looks.length / LOOKED_AT)), seen = looks.filter((_, i) => i % step === 0);
  const side = median(seen.map((look) => look.side));
  const wanted = seen.filter(({ ink }) => ink).length > seen.length / 2 ? 96 : side < 48 ? 128 : side < 96 ? 160 : 224;
  return sizes.reduce((best, size) => (Math.abs(size - wanted) < Math.abs(best - wanted) ? size : best));
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
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
