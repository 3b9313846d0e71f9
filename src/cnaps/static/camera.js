// The camera: what it sees is answered several times a second while it is open; pictures go to a class or a tray.

import { ask, state, upload } from "./api.js";
import { $, h, percent, sync, text, toast } from "./dom.js";
import { hue, placeName } from "./parts.js";
import { PACE } from "./transport.js";

let stream = null, watching = false, series = null;

export async function openCamera(place = "test") {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480, facingMode: "environment" } });
  } catch (error) {
    return toast(error.name === "NotAllowedError" ? "The camera was refused: allow it for this page in the browser, then try again."
      : "No camera can be used here. Is there one, or is another program using it?", { kind: "bad" });
  }
  $("#video").srcObject = stream;
  sync($("#camera-place"), ["test", ...state.classes.map(({ id }) => id), "pool"], (each) => each,
    (each) => h("option", { value: each }), (option, each) => text(option, placeName(each)));
  $("#camera-place").value = place;
  $("#camera").showModal();
  watch();
}

const frame = (width = 640) => new Promise((resolve) => {
  const video = $("#video"), height = Math.round(width * (video.videoHeight || 3) / (video.videoWidth || 4));
  const canvas = h("canvas", { width, height });
  canvas.getContext("2d").drawImage(video, 0, 0, width, height);
  canvas.toBlob(resolve, "image/jpeg", 0.9);
});

// one question at a time: as many a second as the computer can answer
async function watch() {
  if (watching) return;
  watching = true;
  while ($("#camera").open) {
    const began = performance.now();
    if (state.status.phase === "waiting" || !$("#video").videoWidth) text($("#live p"), state.status.phase === "waiting" ? "Answers appear once two classes have examples." : "");
    else {
      try {
        const answer = await (await ask("POST", "/predict", await frame(320))).json();
        live(answer.predictions[0]);
      } catch { text($("#live p"), ""); }
    }
    await new Promise((resolve) => setTimeout(resolve, Math.max(0.3 * PACE, PACE - (performance.now() - began))));
  }
  watching = false;
}

function live({ probabilities, none_of_these: none }) {
  const top = Object.entries(probabilities).sort((a, b) => b[1] - a[1]).slice(0, 3);
  text($("#live p"), none ? "Perhaps none of these" : "");
  sync($("#live ol"), top, ([name]) => name, () => h("li", {}, h("span"), h("b"), h("i", { class: "bar" }, h("i"))),
    (row, [name, p]) => {
      row.className = hue(state.classes.find((entry) => entry.name === name)?.id ?? "");
      text(row.children[0], name);
      text(row.children[1], percent(p));
      row.children[2].firstChild.style.width = `${(100 * p).toFixed(1)}%`;
    });
}

async function shoot() {
  const blob = await frame(Math.min($("#video").videoWidth || 640, 1280));
  if (blob) upload([{ file: new File([blob], `camera-${Date.now()}.jpg`, { type: "image/jpeg" }) }], $("#camera-place").value, { quiet: true });
}

async function countDown() {
  for (const left of [3, 2, 1]) {
    text($("#count"), String(left));
    $("#count").hidden = false;
    await new Promise((resolve) => setTimeout(resolve, 1000));
    if (!$("#camera").open) break;
  }
  $("#count").hidden = true;
  if ($("#camera").open) shoot();
}

$("#camera").addEventListener("close", () => { clearInterval(series); for (const track of stream?.getTracks() ?? []) track.stop(); });
$("#shoot").addEventListener("click", (event) => { if (event.detail === 0) shoot(); });
$("#shoot").addEventListener("pointerdown", () => { shoot(); series = setInterval(shoot, 350); });
for (const event of ["pointerup", "pointerleave", "pointercancel"]) $("#shoot").addEventListener(event, () => clearInterval(series));
$("#shoot").addEventListener("contextmenu", (event) => event.preventDefault()); // what a finger that stays would open
$("#later").addEventListener("click", countDown);
