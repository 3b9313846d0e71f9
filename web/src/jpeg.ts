// A JPEG file at a half, a quarter or an eighth of its size, pixel for pixel as Python gets it from libjpeg. Photographs of
// a telephone have many more pixels than the model reads: so they take a fraction of the memory that a browser would need.

import { type Picture, stepOf } from "./pixels";

interface Component {
  id: number; h: number; v: number; table: number;
  across: number; down: number; // blocks that have pixels of the image
  stride: number; // blocks in a row, those beyond the image too
  size: number; // pixels of a block's side in the result, 8 at full size
  wide: number; high: number; // pixels of the result
  plane: Uint8Array; // stride * size wide
  coefficients: Int16Array | null; // of all blocks; a file in one go needs only one at a time
  last: number; dc: Huffman; ac: Huffman;
}
interface Frame { width: number; height: number; progressive: boolean; parts: Component[]; scale: number }
type Huffman = Uint16Array; // by the next 16 bits: length of the code * 256 + symbol
class Unusual extends Error {}

const ZIGZAG = zigzag();
const c = (k: number) => Math.SQRT2 * Math.cos((k * Math.PI) / 16), fixed = (value: number) => Math.round(value * 8192);
const IDCT = { 8: matrix8(), 4: matrix4(), 2: matrix2() } as Record<number, Int32Array>;

// RGB rows, upright, no side below `atLeast`; null for files that are small enough already, or of a rare kind.
export function decodeJpeg(bytes: Uint8Array, atLeast: number): Picture | null {
  try {
    return decoded(bytes, atLeast);
  } catch (error) {
    if (error instanceof Unusual || error instanceof RangeError || error instanceof TypeError) return null; // the browser may know more
    throw error;
  }
}

function decoded(bytes: Uint8Array, atLeast: number): Picture | null {
  const word = (at: number) => (bytes[at] << 8) | bytes[at + 1];
  const quantisation: Int32Array[] = [], dc: Huffman[] = [], ac: Huffman[] = [];
  let frame: Frame | null = null;
  let restart = 0, orientation = 1, adobe = -1, jfif = false;
  if (word(0) !== 0xffd8) return null;
  for (let at = 2; at < bytes.length; ) {
    if (bytes[at] !== 0xff) throw new Unusual();
    const kind = bytes[at + 1];
    at += kind === 0xff ? 1 : 2;
    if (kind === 0xff || kind === 1 || (kind >= 0xd0 && kind <= 0xd7)) continue;
    if (kind === 0xd9) break;
    const end = at + word(at);
    at += 2;
    if (end > bytes.length) throw new Unusual();
    if (kind === 0xdb) {
      while (at < end) {
        const [wide, number] = [bytes[at] >> 4, bytes[at++] & 15], table = (quantisation[number] = new Int32Array(64));
        for (let k = 0; k < 64; k++, at += wide ? 2 : 1) table[ZIGZAG[k]] = wide ? word(at) : bytes[at];
      }
    } else if (kind === 0xc4) {
      while (at < end) {
        const about = bytes[at], lengths = bytes.subarray(at + 1, at + 17), count = lengths.reduce((a, b) => a + b, 0);
        (about >> 4 ? ac : dc)[about & 15] = huffman(lengths, bytes.subarray(at + 17, at + 17 + count));
        at += 17 + count;
      }
    } else if (kind >= 0xc0 && kind <= 0xc2) {
      if (frame || bytes[at] !== 8) throw new Unusual();
      frame = { height: word(at + 1), width: word(at + 3), progressive: kind === 0xc2, parts: [], scale: 1 };
      frame.scale = stepOf(frame.width, frame.height, atLeast);
      if (frame.scale === 1) return null;
      for (let i = 0; i < bytes[at + 5]; i++) {
        const [id, sampling, table] = bytes.subarray(at + 6 + 3 * i, at + 9 + 3 * i);
        frame.parts.push({ id, h: sampling >> 4, v: sampling & 15, table, last: 0 } as Component);
      }
      layOut(frame);
    } else if (kind > 0xc2 && kind < 0xd0 && kind !== 0xc8 && kind !== 0xcc) throw new Unusual(); // arithmetic coding, lossless
    else if (kind === 0xdd) restart = word(at);
    else if (kind === 0xe0) jfif = true;
    else if (kind === 0xe1) orientation = orientationIn(bytes.subarray(at, end)) ?? orientation;
    else if (kind === 0xee && String.fromCharCode(...bytes.subarray(at, at + 5)) === "Adobe") adobe = bytes[at + 11];
    else if (kind === 0xda) {
      if (!frame) throw new Unusual();
      const parts = Array.from({ length: bytes[at] }, (_, i) => {
        const part = frame!.parts.find(({ id }) => id === bytes[at + 1 + 2 * i])!, tables = bytes[at + 2 + 2 * i];
        part.dc = dc[tables >> 4];
        part.ac = ac[tables & 15];
        return part;
      });
      const [from, to, bits] = bytes.subarray(end - 3, end);
      at = scan(frame, parts, bytes, end, restart, quantisation, from, to, bits >> 4, bits & 15);
      continue;
    }
    at = end;
  }
  if (!frame) return null;
  for (const part of frame.parts) {
    const { coefficients, stride, size, plane, table } = part, used = quantisation[table];
    if (coefficients) for (let block = 0; block * 64 < coefficients.length; block++) inverse(coefficients, block * 64, used, size, plane, stride * size, place(part, block));
  }
  const ids = String.fromCharCode(...frame.parts.map(({ id }) => id));
  return upright(coloured(frame, !(adobe === 0 || (adobe < 0 && !jfif && ids === "RGB"))), orientation);
}

const place = ({ stride, size }: Component, block: number) => Math.floor(block / stride) * size * stride * size + (block % stride) * size;

// How large each component becomes: where chroma has fewer pixels, a larger share of them is kept, as libjpeg does.
function layOut({ width, height, progressive, parts, scale }: Frame): void {
  if (parts.length !== 1 && parts.length !== 3) throw new Unusual();
  if (parts.length === 1) parts[0].h = parts[0].v = 1;
  const h = Math.max(...parts.map((part) => part.h)), v = Math.max(...parts.map((part) => part.v)), least = 8 / scale;
  const rows = Math.ceil(height / (8 * v)), columns = Math.ceil(width / (8 * h));
  for (const part of parts) {
    part.size = least;
    while (part.size < 8 && (h * least) % (part.h * part.size * 2) === 0 && (v * least) % (part.v * part.size * 2) === 0) part.size *= 2;
    const share = (side: number, own: number, most: number, size: number) => Math.ceil((side * own * size) / (most * 8));
    part.wide = share(width, part.h, h, part.size);
    part.high = share(height, part.v, v, part.size);
    part.across = Math.ceil(share(width, part.h, h, 8) / 8);
    part.down = Math.ceil(share(height, part.v, v, 8) / 8);
    part.stride = columns * part.h;
    const blocks = part.stride * rows * part.v;
    part.plane = new Uint8Array(blocks * part.size * part.size);
    part.coefficients = progressive ? new Int16Array(blocks * 64) : null;
  }
}

// One scan; where it ends.
function scan(frame: Frame, parts: Component[], bytes: Uint8Array, begin: number,
  restart: number, quantisation: Int32Array[], from: number, to: number, high: number, low: number): number {
  const { progressive } = frame, one = new Int16Array(64);
  let data = new Uint8Array(0), at = 0, held = 0, count = 0, run = 0; // `count` bits in `held`; `run` bands without coefficients
  let next = begin;

  // Bytes up to the next marker, without the zeros that follow 255.
  const segment = () => {
    let end = next;
    while (end < bytes.length && !(bytes[end] === 0xff && bytes[end + 1] !== 0 && bytes[end + 1] !== 0xff)) end++;
    data = new Uint8Array(end - next);
    let length = 0;
    for (let i = next; i < end; i++) {
      data[length++] = bytes[i];
      if (bytes[i] === 0xff) while (i + 1 < end && bytes[i + 1] === 0xff) i++;
      if (bytes[i] === 0xff) i++;
    }
    data = data.subarray(0, length);
    next = end;
    at = held = count = run = 0;
    for (const part of frame.parts) part.last = 0;
  };
  const fill = () => {
    while (count <= 24) {
      held = (held << 8) | data[at++]; // beyond the end: zeros
      count += 8;
    }
    if (at > data.length + 64) throw new Unusual();
  };
  const take = (n: number) => {
    if (count < 16) fill();
    count -= n;
    return (held >>> count) & ((1 << n) - 1);
  };
  const symbol = (table: Huffman) => {
    if (count < 16) fill();
    const found = table[(held >>> (count - 16)) & 0xffff];
    if (!found) throw new Unusual();
    count -= found >> 8;
    return found & 255;
  };
  const number = (n: number) => {
    if (!n) return 0;
    const value = take(n);
    return value < 1 << (n - 1) ? value - (1 << n) + 1 : value;
  };

  const sequential = (part: Component, out: Int16Array, start: number) => {
    out[start] = part.last += number(symbol(part.dc));
    for (let k = 1; k < 64; k++) {
      const found = symbol(part.ac), bits = found & 15;
      if (!bits && found < 0xf0) break;
      k += found >> 4;
      if (bits) out[start + ZIGZAG[k]] = number(bits);
    }
  };
  const firstDc = (part: Component, out: Int16Array, start: number) => { out[start] = (part.last += number(symbol(part.dc))) << low; };
  const moreDc = (_: Component, out: Int16Array, start: number) => { if (take(1)) out[start] |= 1 << low; };
  const firstAc = (part: Component, out: Int16Array, start: number) => {
    if (run) return void run--;
    for (let k = from; k <= to; k++) {
      const found = symbol(part.ac), bits = found & 15, zeros = found >> 4;
      if (!bits && zeros < 15) {
        run = (1 << zeros) - 1 + (zeros ? take(zeros) : 0);
        break;
      }
      k += zeros;
      if (bits) out[start + ZIGZAG[k]] = number(bits) * (1 << low);
    }
  };
  const moreAc = (part: Component, out: Int16Array, start: number) => {
    const step = 1 << low;
    const refine = (place: number) => { if (take(1) && !(out[place] & step)) out[place] += out[place] < 0 ? -step : step; };
    let k = from;
    if (!run) {
      for (; k <= to; k++) {
        const found = symbol(part.ac), bits = found & 15;
        let zeros = found >> 4, value = 0;
        if (bits) value = take(1) ? step : -step;
        else if (zeros < 15) {
          run = (1 << zeros) + (zeros ? take(zeros) : 0);
          break;
        }
        for (; k <= to; k++) {
          const place = start + ZIGZAG[k];
          if (out[place]) refine(place);
          else if (zeros-- === 0) {
            out[place] = value;
            break;
          }
        }
      }
    }
    if (!run) return;
    for (; k <= to; k++) if (out[start + ZIGZAG[k]]) refine(start + ZIGZAG[k]);
    run--;
  };
  const read = !progressive ? sequential : from ? (high ? moreAc : firstAc) : high ? moreDc : firstDc;

  const block = (part: Component, number: number) => {
    if (part.coefficients) return read(part, part.coefficients, number * 64);
    one.fill(0);
    read(part, one, 0);
    inverse(one, 0, quantisation[part.table], part.size, part.plane, part.stride * part.size, place(part, number));
  };
  const [single] = parts, alone = parts.length === 1;
  const across = alone ? single.across : single.stride / single.h;
  const total = alone ? single.across * single.down : across * Math.ceil(frame.height / (8 * Math.max(...frame.parts.map(({ v }) => v))));
  segment();
  for (let unit = 0; unit < total; unit++) {
    if (restart && unit && unit % restart === 0) {
      if (bytes[next + 1] < 0xd0 || bytes[next + 1] > 0xd7) throw new Unusual();
      next += 2;
      segment();
    }
    const x = unit % across, y = Math.floor(unit / across);
    if (alone) block(single, y * single.stride + x);
    else for (const part of parts) for (let v = 0; v < part.v; v++) for (let h = 0; h < part.h; h++) block(part, (y * part.v + v) * part.stride + x * part.h + h);
  }
  if (at - (count >> 3) > data.length) throw new Unusual(); // it was cut off
  return next;
}

const sums = new Int32Array(64);

// An inverse cosine transform whose result is the mean of neighbours, in whole numbers as libjpeg has them.
function inverse(from: Int16Array, start: number, quantisation: Int32Array, size: number, out: Uint8Array, stride: number, to: number): void {
  if (size === 1) {
    out[to] = clamped(((from[start] * quantisation[0] + 4) >> 3) + 128);
    return;
  }
  const matrix = IDCT[size], more = size === 8 ? 0 : size === 4 ? 1 : 2, half = 1 << (10 + more);
  let columns = 0; // those with anything in them
  for (let x = 0; x < 8; x++) {
    for (let n = 0; n < size; n++) sums[n * 8 + x] = half;
    for (let y = 0; y < 8; y++) {
      const place = y * 8 + x;
      if (!from[start + place]) continue;
      const value = from[start + place] * quantisation[place];
      columns |= 1 << x;
      for (let n = 0; n < size; n++) sums[n * 8 + x] += matrix[n * 8 + y] * value;
    }
    for (let n = 0; n < size; n++) sums[n * 8 + x] >>= 11 + more;
  }
  const shift = 18 + more, middle = (1 << (shift - 1)) + (128 << shift);
  for (let n = 0; n < size; n++) {
    for (let m = 0; m < size; m++) {
      let sum = middle;
      for (let x = 0; x < 8; x++) if (columns & (1 << x)) sum += matrix[m * 8 + x] * sums[n * 8 + x];
      out[to + n * stride + m] = clamped(sum >> shift);
    }
  }
}

const clamped = (value: number) => (value < 0 ? 0 : value > 255 ? 255 : value);

// Row n has the share of each coefficient in output n. Whole numbers, and made of the same parts as libjpeg's: Loeffler's,
// Ligtenberg's and Moschytz' transform, which has eleven products.
function matrix8(): Int32Array {
  const made = new Int32Array(64);
  for (let k = 0; k < 8; k++) {
    const [c0, c1, c2, c3, c4, c5, c6, c7] = Array.from({ length: 8 }, (_, i) => Number(i === k));
    const turned = (c2 + c6) * fixed(c(6)), low = turned - c6 * fixed(c(2) + c(6)), high = turned + c2 * fixed(c(2) - c(6));
    const even = [(c0 + c4) * 8192 + high, (c0 - c4) * 8192 + low, (c0 - c4) * 8192 - low, (c0 + c4) * 8192 - high];
    const z5 = (c7 + c3 + c5 + c1) * fixed(c(3)), z1 = (c7 + c1) * fixed(c(3) - c(7)), z2 = (c5 + c3) * fixed(c(1) + c(3));
    const z3 = z5 - (c7 + c3) * fixed(c(3) + c(5)), z4 = z5 - (c5 + c1) * fixed(c(3) - c(5));
    const odd = [
      c1 * fixed(c(1) + c(3) - c(5) - c(7)) - z1 + z4, c3 * fixed(c(1) + c(3) + c(5) - c(7)) - z2 + z3,
      c5 * fixed(c(1) + c(3) - c(5) + c(7)) - z2 + z4, c7 * fixed(-c(1) + c(3) + c(5) - c(7)) - z1 + z3,
    ];
    for (let n = 0; n < 4; n++) {
      made[n * 8 + k] = even[n] + odd[n];
      made[(7 - n) * 8 + k] = even[n] - odd[n];
    }
  }
  return made;
}

// Sums of two neighbours of the eight, and of four.
function matrix4(): Int32Array {
  const a = fixed(c(2) + c(6)), b = fixed(c(2) - c(6));
  const outer = [c(1) + c(3), c(3) - c(7), c(5) - c(1), c(7) - c(5)].map(fixed), inner = [c(5) + c(7), -c(1) - c(5), c(3) + c(7), c(3) - c(1)].map(fixed);
  const row = (even: number, sign: number, odd: number[]) => [16384, sign * odd[0], even * a, sign * odd[1], 0, sign * odd[2], -even * b, sign * odd[3]];
  return Int32Array.from([row(1, 1, outer), row(-1, 1, inner), row(-1, -1, inner), row(1, -1, outer)].flat());
}
function matrix2(): Int32Array {
  const odd = [c(1) + c(3) + c(5) + c(7), c(3) - c(1) - c(5) - c(7), c(3) - c(1) + c(5) + c(7), c(3) - c(1) - c(5) + c(7)].map(fixed);
  return Int32Array.from([1, -1].flatMap((sign) => [32768, sign * odd[0], 0, sign * odd[1], 0, sign * odd[2], 0, sign * odd[3]]));
}

// Places of a block in the order of the file; a damaged one may go on beyond them.
function zigzag(): Uint8Array {
  const order = Array.from({ length: 64 }, (_, i) => i), diagonal = (i: number) => (i >> 3) + (i & 7);
  order.sort((a, b) => diagonal(a) - diagonal(b) || (diagonal(a) % 2 ? a - b : b - a));
  return Uint8Array.from([...order, ...Array<number>(16).fill(63)]);
}

function huffman(lengths: Uint8Array, symbols: Uint8Array): Huffman {
  const table = new Uint16Array(65536);
  let code = 0, next = 0;
  lengths.forEach((count, i) => {
    for (let n = 0; n < count; n++, code += 1 << (15 - i)) table.fill(((i + 1) << 8) | symbols[next++], code, code + (1 << (15 - i)));
  });
  return table;
}

// Components brought to one size, and YCbCr to RGB.
function coloured({ width, height, parts, scale }: Frame, convert: boolean): Picture {
  const wide = Math.ceil(width / scale), high = Math.ceil(height / scale), out = new Uint8Array(wide * high * 3);
  const [y, blue, red] = parts.map((part) => stretched(part, wide, high, scale < 8)), [at = 0, bt = 0, rt = 0] = [y, blue, red].map((each) => each?.stride);
  for (let row = 0, to = 0; row < high; row++) {
    for (let x = 0; x < wide; x++, to += 3) {
      const value = y.data[row * at + x];
      if (!blue) out[to] = out[to + 1] = out[to + 2] = value;
      else {
        const cb = blue.data[row * bt + x] - 128, cr = red.data[row * rt + x] - 128;
        out[to] = convert ? clamped(value + ((91881 * cr + 32768) >> 16)) : value;
        out[to + 1] = convert ? clamped(value + ((-22554 * cb - 46802 * cr + 32768) >> 16)) : cb + 128;
        out[to + 2] = convert ? clamped(value + ((116130 * cb + 32768) >> 16)) : cr + 128;
      }
    }
  }
  return { width: wide, height: high, data: out, step: scale, whole: [width, height], jpeg: true };
}

// A component that has half as many columns or rows: between its pixels in a ratio of three to one, where libjpeg does that.
function stretched({ plane, stride, size, wide: columns, high: rows }: Component, wide: number, high: number, smooth: boolean): { data: Uint8Array; stride: number } {
  const from = stride * size, twiceWide = columns === Math.ceil(wide / 2) && columns !== wide, twiceHigh = rows === Math.ceil(high / 2) && rows !== high;
  if (columns === wide && rows === high) return { data: plane, stride: from };
  if (twiceWide === twiceHigh || (!twiceWide && columns !== wide) || (!twiceHigh && rows !== high)) throw new Unusual();
  const data = new Uint8Array(wide * high), fancy = smooth && (twiceHigh || columns > 2);
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      const [u, v] = twiceWide ? [x >> 1, y] : [x, y >> 1], later = (twiceWide ? x : y) & 1, own = plane[v * from + u];
      const [p, q] = twiceWide ? [Math.min(columns - 1, Math.max(0, u + (later ? 1 : -1))), v] : [u, Math.min(rows - 1, Math.max(0, v + (later ? 1 : -1)))];
      data[y * wide + x] = fancy ? (3 * own + plane[q * from + p] + 1 + later) >> 2 : own;
    }
  }
  return { data, stride: wide };
}

// Where the camera was held otherwise; EXIF says so by a number.
function orientationIn(block: Uint8Array): number | undefined {
  if (String.fromCharCode(...block.subarray(0, 6)) !== "Exif\0\0") return undefined;
  const view = new DataView(block.buffer, block.byteOffset + 6, block.length - 6), little = view.getUint16(0) === 0x4949;
  const first = view.getUint32(4, little);
  for (let i = 0; i < view.getUint16(first, little); i++) {
    if (view.getUint16(first + 2 + 12 * i, little) === 0x112) return view.getUint16(first + 10 + 12 * i, little);
  }
  return undefined;
}

function upright(picture: Picture, orientation: number): Picture {
  if (!(orientation > 1 && orientation <= 8)) return picture;
  const { width, height, data } = picture;
  const turned = orientation > 4, [wide, high] = turned ? [height, width] : [width, height], out = new Uint8Array(data.length);
  const flipX = [2, 3, 7, 8].includes(orientation), flipY = [3, 4, 6, 7].includes(orientation);
  for (let y = 0, to = 0; y < high; y++) {
    for (let x = 0; x < wide; x++, to += 3) {
      const [u, v] = turned ? [y, x] : [x, y], from = ((flipY ? height - 1 - v : v) * width + (flipX ? width - 1 - u : u)) * 3;
      out[to] = data[from];
      out[to + 1] = data[from + 1];
      out[to + 2] = data[from + 2];
    }
  }
  return { ...picture, width: wide, height: high, data: out, whole: turned ? [picture.whole[1], picture.whole[0]] : picture.whole };
}
