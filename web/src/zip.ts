// Zip files: written without compression (photographs have theirs), read where stored or deflated.

import { InputError } from "./errors";

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n >>> 0;
});
function crc32(bytes: Uint8Array): number {
  let sum = 0xffffffff;
  for (let i = 0; i < bytes.length; i++) sum = TABLE[(sum ^ bytes[i]) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

const numbers = (...pairs: [number, number][]) => {
  const out = new DataView(new ArrayBuffer(pairs.reduce((sum, [size]) => sum + size, 0)));
  let place = 0;
  for (const [size, value] of pairs) {
    if (size === 2) out.setUint16(place, value, true);
    else out.setUint32(place, value, true);
    place += size;
  }
  return new Uint8Array(out.buffer);
};

export async function writeZip(files: Iterable<[string, Blob]>): Promise<Blob> {
  const parts: BlobPart[] = [], directory: BlobPart[] = [];
  let place = 0, listed = 0, count = 0;
  for (const [name, file] of files) {
    const path = new TextEncoder().encode(name), sum = crc32(new Uint8Array(await file.arrayBuffer()));
    // version 2.0, names in UTF-8, stored, 1980-01-01
    const about: [number, number][] = [[2, 20], [2, 0x800], [2, 0], [2, 0], [2, 33], [4, sum], [4, file.size], [4, file.size], [2, path.length], [2, 0]];
    parts.push(numbers([4, 0x04034b50], ...about), path, file);
    directory.push(numbers([4, 0x02014b50], [2, 20], ...about, [2, 0], [2, 0], [2, 0], [4, 0], [4, place]), path);
    place += 30 + path.length + file.size;
    listed += 46 + path.length;
    count++;
  }
  const end = numbers([4, 0x06054b50], [2, 0], [2, 0], [2, count], [2, count], [4, listed], [4, place], [2, 0]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

const MOST = 2e9; // bytes that a file may unpack to

export async function readZip(file: Blob): Promise<Map<string, () => Promise<Uint8Array>>> {
  const damaged = new InputError("the zip file is damaged");
  const tail = new DataView(await file.slice(-65_557).arrayBuffer());
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw damaged;
  const size = tail.getUint32(end + 12, true), start = tail.getUint32(end + 16, true);
  const list = new DataView(await file.slice(start, start + size).arrayBuffer());
  const found = new Map<string, () => Promise<Uint8Array>>();
  let total = 0;
  for (let place = 0; place + 46 <= list.byteLength; ) {
    if (list.getUint32(place, true) !== 0x02014b50) throw damaged;
    const method = list.getUint16(place + 10, true), packed = list.getUint32(place + 20, true), at = list.getUint32(place + 42, true);
    const [name, extra, comment] = [28, 30, 32].map((offset) => list.getUint16(place + offset, true));
    const path = new TextDecoder().decode(new Uint8Array(list.buffer, place + 46, name));
    place += 46 + name + extra + comment;
    if (path.endsWith("/")) continue;
    found.set(path, async () => {
      const head = new DataView(await file.slice(at, at + 30).arrayBuffer());
      const from = at + 30 + head.getUint16(26, true) + head.getUint16(28, true), body = file.slice(from, from + packed);
      if (method === 0) return new Uint8Array(await body.arrayBuffer());
      if (method !== 8) throw damaged;
      const parts: Uint8Array<ArrayBuffer>[] = [];
      for await (const part of body.stream().pipeThrough(new DecompressionStream("deflate-raw")) as unknown as AsyncIterable<Uint8Array<ArrayBuffer>>) {
        total += part.length;
        if (total > MOST) throw new InputError("the zip file unpacks to more than 2 GB");
        parts.push(part);
      }
      return new Uint8Array(await new Blob(parts).arrayBuffer());
    });
  }
  return found;
}
