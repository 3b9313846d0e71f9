// Wires everything together: files in, keys, menus, and drawing when there is news.

import { ask, change, follow, onState, remove, move, state, undo, upload, uploading } from "./api.js";
import { $, $$, h, plural, sync, text, toast } from "./dom.js";
import { KEYS, drawViewer, placeName, view, viewerKey } from "./parts.js";
import { drawLabel, drawMap, drawReview, drawTeach, drawTest, labelKey } from "./views.js";

onState(() => {
  document.title = `${state.name} · cnaps studio`;
  if (document.activeElement !== $("#name")) $("#name").value = state.name;
  drawStatus();
  $("#undo").disabled = !state.can_undo;
  drawTeach();
  drawTest();
  drawLabel();
  drawReview();
  drawMap();
  if ($("#viewer").open) drawViewer();
  document.body.dataset.phase = state.status.phase;
  document.body.dataset.version = state.version;
});

function drawStatus() {
  const { phase, text: words, seconds } = state.status;
  let line = words;
  if (uploading) line = `Adding ${plural(uploading.total, "image")}, ${uploading.done} done`;
  else if (phase === "waiting") line = state.classes.length ? "Give two classes some examples" : "Nothing to learn yet";
  else if (phase === "learning" || phase === "refining") line = `${words}…`;
  else if (phase === "ready" && seconds !== null) line = `${words} in ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  text($("#status span"), line);
  $("#status").dataset.phase = uploading ? "learning" : phase;
}

// tabs

function show(tab) {
  for (const other of $$("[role=tab]")) {
    const on = other === tab;
    other.ariaSelected = String(on);
    other.tabIndex = on ? 0 : -1;
    $(`#${other.getAttribute("aria-controls")}`).hidden = !on;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`); // without scrolling there
}
$(".tabs").addEventListener("click", (event) => event.target.closest("[role=tab]") && show(event.target.closest("[role=tab]")));
$(".tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tabs = $$("[role=tab]");
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  show(next);
  next.focus();
});
show($(`#tab-${location.hash.slice(1)}`) ?? $("#tab-teach"));

// files: picked, dropped, pasted, photographed

let target = "test";
const listed = (files) => [...files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));

document.addEventListener("click", (event) => {
  const pick = event.target.closest("[data-pick]"), small = event.target.closest(".thumb");
  if (pick) { target = pick.dataset.pick; $("#file").click(); }
  if (event.target.closest("[data-pick-folder]")) $("#folder").click();
  if (event.target.closest("[data-new-class]")) $("#new-name").focus();
  if (small) view(small.dataset.id);
  if (!event.target.closest("#more")) $("#more").open = false;
});
for (const [input, place] of [["#file", () => target], ["#folder", () => "folders"]]) {
  $(input).addEventListener("change", (event) => {
    const files = listed(event.target.files);
    event.target.value = "";
    upload(files, place());
  });
}

async function walk(entry, path = "") {
  if (entry.isFile) return new Promise((resolve) => entry.file((file) => resolve([{ file, path: path + file.name }]), () => resolve([])));
  const reader = entry.createReader(), found = [];
  for (;;) {
    const part = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!part.length) return found;
    for (const child of part) found.push(...await walk(child, `${path}${entry.name}/`));
  }
}

const zone = (event) => event.target.closest?.("[data-place]");
const mark = (element) => { for (const old of $$(".over")) if (old !== element) old.classList.remove("over"); element?.classList.add("over"); };
document.addEventListener("dragstart", (event) => {
  const small = event.target.closest?.(".thumb");
  if (small) event.dataTransfer.setData("application/x-cnaps", small.dataset.id);
});
document.addEventListener("dragover", (event) => { event.preventDefault(); mark(zone(event) ?? $("#work")); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(null); });
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  mark(null);
  let place = zone(event)?.dataset.place;
  const moved = event.dataTransfer.getData("application/x-cnaps");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (moved) return place && place !== "folders" && place !== "new" ? move([moved], place) : null;
  const folders = entries.some((entry) => entry.isDirectory);
  const plain = listed(event.dataTransfer.files); // what there is where entries are not
  const files = entries.length ? (await Promise.all(entries.map((entry) => walk(entry)))).flat() : plain;
  if (folders && (!place || place === "new")) place = "folders";
  if (!folders && (place === "new" || place === "folders")) place = (await change("POST", "/api/classes", { name: freeName() }))?.id;
  upload(files, place ?? "pool");
});
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) upload(listed(files), document.activeElement.closest?.("[data-place]:not([data-place=new])")?.dataset.place ?? "test");
});
const freeName = () => { for (let i = state.classes.length + 1; ; i++) if (!state.classes.some(({ name }) => name === `Class ${i}`)) return `Class ${i}`; };

let stream = null;
$("#open-camera").hidden = !navigator.mediaDevices?.getUserMedia;
$("#open-camera").addEventListener("click", async () => {
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 } });
  } catch (error) {
    const refused = error.name === "NotAllowedError";
    return toast(refused ? "The camera was refused: allow it for this page in the browser, then try again." : "No camera can be used here.", { kind: "bad" });
  }
  $("#video").srcObject = stream;
  sync($("#camera-place"), ["test", ...state.classes.map(({ id }) => id), "pool"], (place) => place,
    (place) => h("option", { value: place }), (option, place) => text(option, placeName(place)));
  $("#camera").showModal();
});
$("#camera").addEventListener("close", () => { for (const track of stream?.getTracks() ?? []) track.stop(); });
function shoot() {
  const video = $("#video"), canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob((blob) => blob && upload([{ file: new File([blob], `camera-${Date.now()}.jpg`) }], $("#camera-place").value), "image/jpeg", 0.92);
}
let series = null;
$("#shoot").addEventListener("click", (event) => { if (event.detail === 0) shoot(); });
$("#shoot").addEventListener("pointerdown", () => { shoot(); series = setInterval(shoot, 350); });
for (const event of ["pointerup", "pointerleave", "pointercancel"]) $("#shoot").addEventListener(event, () => clearInterval(series));

// names, menus, keys

$("#name").addEventListener("change", (event) => change("PATCH", "/api/project", { name: event.target.value }));
$("#new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("#new-name").value.trim();
  if (name && await change("POST", "/api/classes", { name })) $("#new-name").value = "";
});
$("#undo").addEventListener("click", undo);
for (const button of $$("[data-export]")) {
  button.addEventListener("click", async () => {
    $("#more").open = false;
    const kind = button.dataset.export;
    if (kind === "onnx") toast("Preparing the network. This takes some seconds.");
    try {
      const response = await ask("GET", `/api/export/${kind}`);
      const name = response.headers.get("Content-Disposition").match(/filename="(.+)"/)[1];
      const link = h("a", { href: URL.createObjectURL(await response.blob()), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
      toast(`Saved as ${name}`);
    } catch (error) {
      toast(error.message, { kind: "bad" });
    }
  });
}
$("#import").addEventListener("click", () => $("#archive").click());
$("#archive").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  $("#more").open = false;
  const report = await change("POST", "/api/import", file);
  event.target.value = "";
  if (report) toast(report.message, { action: "Undo", run: undo });
});

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea")) return;
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") { event.preventDefault(); undo(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || !state) return;
  const small = document.activeElement.closest?.(".thumb");
  if ($("#viewer").open) return viewerKey(event.key);
  if (small && (event.key === "Delete" || event.key === "Backspace")) {
    const next = small.closest("li").nextElementSibling ?? small.closest("li").previousElementSibling;
    remove([small.dataset.id]);
    $(".thumb", next ?? document.createElement("i"))?.focus();
  } else if (small && KEYS.includes(event.key)) {
    const entry = state.classes[KEYS.indexOf(event.key)];
    if (entry) move([small.dataset.id], entry.id);
  } else if (!$("#label").hidden && !document.activeElement.matches("button, a, summary, circle")) {
    if (event.key === " ") event.preventDefault();
    labelKey(event.key);
  } else if (!$("#label").hidden && KEYS.includes(event.key)) labelKey(event.key);
});

follow((gone) => { $("#offline").hidden = !gone; });
