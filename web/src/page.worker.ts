// The worker of a page of one's own: the exported network, and images squared as Python does.

import { startRuntime } from "./runtime";
import { readMetadata } from "./onnx";
import { openImage, pictureOf, toSquare } from "./pixels";

const ready = open();
ready.then(({ classes }) => postMessage({ about: `It tells apart: ${classes.join(", ")}.` }), (error) => postMessage({ about: error.message }));

async function open() {
  const response = await fetch(self.name).catch(() => null); // the page names its worker by the address of the network
  if (!response?.ok) throw new Error("classifier.onnx cannot be fetched: it belongs beside this page, on a web server (a file opened from a disk does not work).");
  const bytes = new Uint8Array(await response.arrayBuffer()), about = readMetadata(bytes);
  const classes: string[] = JSON.parse(about.get("classes")!).map(String);
  const { ort, open } = await startRuntime();
  return { ort, session: await open(bytes), classes, size: Number(about.get("image_size")), threshold: Number(about.get("threshold") ?? Infinity) };
}

let last = Promise.resolve();
addEventListener("message", ({ data }: MessageEvent<Blob | ImageBitmap>) => { last = last.then(() => answer(data)); });

async function answer(image: Blob | ImageBitmap): Promise<void> {
  try {
    const { ort, session, classes, size, threshold } = await ready;
    const rows = toSquare(image instanceof Blob ? await openImage(image, 2 * size) : pictureOf(image), size);
    const planes = new Uint8Array(rows.length), area = size * size;
    for (let i = 0; i < area; i++) for (let c = 0; c < 3; c++) planes[c * area + i] = rows[3 * i + c];
    const found = await session.run({ images: new ort.Tensor("uint8", planes, [1, 3, size, size]) });
    postMessage({ classes, probabilities: [...(found.probabilities.data as Float32Array)], strange: (found.novelty.data as Float32Array)[0] > threshold });
  } catch (error) {
    postMessage({ error: (error as Error).message });
  }
}
