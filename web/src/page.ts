// A page of one's own: classifies images and the camera with the network beside it, classifier.onnx.

// @ts-expect-error plain modules of the studio
import { $, h, percent, toast } from "../../src/cnaps/static/dom.js";

type Found = { classes: string[]; probabilities: number[]; strange: boolean };
const UNSURE = 0.8;
const worker = new Worker(new URL("./page.worker.ts", import.meta.url), { type: "module", name: new URL("classifier.onnx", document.baseURI).href });
const open: ((found: Found | { error: string }) => void)[] = [];
worker.onmessage = ({ data }) => {
  if (data.about) $("#about").textContent = data.about;
  else open.shift()?.(data);
};
worker.onerror = () => { $("#about").textContent = "This browser cannot run the classifier: try a current one."; };

function ask(image: Blob | ImageBitmap): Promise<Found | { error: string }> {
  worker.postMessage(image, image instanceof ImageBitmap ? [image] : []);
  return new Promise((resolve) => open.push(resolve));
}

function answer(found: Found): HTMLElement {
  const order = found.probabilities.map((_, k) => k).sort((a, b) => found.probabilities[b] - found.probabilities[a]).slice(0, 3);
  const words = found.strange ? "none of these?" : found.probabilities[order[0]] < UNSURE ? "not sure" : "";
  const rows = order.map((k) => {
    const bar = h("i", { class: "bar" }, h("i"));
    bar.firstChild.style.width = `${100 * found.probabilities[k]}%`;
    return h("li", { class: `hue-${k % 10}` }, h("span", {}, found.classes[k]), h("b", {}, percent(found.probabilities[k])), bar);
  });
  return h("div", {}, words ? h("p", { class: `doubt ${found.strange ? "none" : "unsure"}` }, words) : null, h("ol", { class: "bars" }, rows));
}

async function classify(files: File[]): Promise<void> {
  for (const file of files) {
    const found = await ask(file);
    if ("error" in found) toast(`${file.name}: ${found.error}`, { kind: "bad" });
    else $("#answers").prepend(h("li", { class: "answer" }, h("img", { src: URL.createObjectURL(file), alt: file.name }), answer(found)));
  }
}

$("#pick").addEventListener("click", () => $("#file").click());
$("#file").addEventListener("change", ({ target }: { target: HTMLInputElement }) => classify([...target.files!]).then(() => { target.value = ""; }));
document.addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
document.addEventListener("dragleave", () => document.body.classList.remove("over"));
document.addEventListener("drop", (event) => { event.preventDefault(); document.body.classList.remove("over"); void classify([...event.dataTransfer!.files]); });
document.addEventListener("paste", (event) => void classify([...event.clipboardData!.files]));

let stream: MediaStream | null = null;
$("#camera").addEventListener("click", async () => {
  for (const track of stream?.getTracks() ?? []) track.stop();
  if (stream) stream = null;
  else {
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480, facingMode: "environment" } });
    } catch (error) {
      return toast((error as Error).name === "NotAllowedError" ? "The camera was refused: allow it for this page in the browser." : "No camera can be used here.", { kind: "bad" });
    }
  }
  const video = $("#video");
  video.srcObject = stream;
  $("#camera").textContent = stream ? "Stop the camera" : "Camera";
  video.hidden = $("#live").hidden = !stream;
  while (stream) {
    await new Promise(requestAnimationFrame);
    const bitmap = stream && video.videoWidth ? await createImageBitmap(video).catch(() => null) : null;
    if (!bitmap) continue; // there is no picture yet
    const found = await ask(bitmap);
    if (!("error" in found)) $("#live").replaceChildren(answer(found));
  }
});
