// Wires everything together: files in, keys, menus, and drawing when there is news.

import { change, follow, onState, remove, move, state, undo, upload, uploading } from "./api.js";
import { $, $$, plural, text, toast } from "./dom.js";
import { KEYS, drawViewer, view, viewerKey } from "./parts.js";
import { drawLabel, drawMap, drawReview, drawTeach, drawTest, labelKey } from "./views.js";
import { drawHeld } from "./held.js";
import { classify, save } from "./answers.js";
import { openCamera } from "./camera.js";
import { all, chosen, clear, clicked, drawSelection, moveChosen, removeChosen } from "./selection.js";
import "./deploy.js";

onState(() => {
  document.title = `${state.name} · cnaps studio`;
  if (document.activeElement !== $("#name")) $("#name").value = state.name;
  drawStatus();
  $("#undo").disabled = !state.can_undo;
  $("#projects").hidden = !state.shelf;
  drawTeach();
  drawTest();
  drawLabel();
  drawReview();
  drawHeld();
  drawMap();
  drawSelection();
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
  if (event.target.closest("[data-pick-held]")) $("#held-folder").click();
  if (event.target.closest("[data-new-class]")) $("#new-name").focus();
  const everything = event.target.closest("[data-all]"), camera = event.target.closest("[data-camera]");
  if (everything) all(everything.closest("[data-place]"));
  if (camera) openCamera(camera.dataset.camera);
  if (small && !clicked(small, event)) view(small.dataset.id);
  if (!event.target.closest("#more")) $("#more").open = false;
});
for (const [input, place] of [["#file", () => target], ["#folder", () => "folders"], ["#held-folder", () => "held"]]) {
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
  if (!small) return;
  const ids = chosen.has(small.dataset.id) ? [...chosen] : [small.dataset.id];
  event.dataTransfer.setData("application/x-cnaps", ids.join(" "));
});
document.addEventListener("dragover", (event) => { event.preventDefault(); mark(zone(event) ?? $("#work")); });
document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) mark(null); });
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  mark(null);
  let place = zone(event)?.dataset.place;
  const moved = event.dataTransfer.getData("application/x-cnaps");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (moved) {
    if (!place || ["folders", "new", "answers", "held"].includes(place)) return null;
    clear();
    return move(moved.split(" "), place);
  }
  const folders = entries.some((entry) => entry.isDirectory);
  const plain = listed(event.dataTransfer.files); // what there is where entries are not
  const files = entries.length ? (await Promise.all(entries.map((entry) => walk(entry)))).flat() : plain;
  if (place === "answers") return classify(files);
  if (folders && (!place || place === "new")) place = "folders";
  if (!folders && (place === "new" || place === "folders")) place = (await change("POST", "/api/classes", { name: freeName() }))?.id;
  upload(files, place ?? "pool");
});
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (files.length) upload(listed(files), document.activeElement.closest?.("[data-place]:not([data-place=new], [data-place=held], [data-place=answers])")?.dataset.place ?? "test");
});
const freeName = () => { for (let i = state.classes.length + 1; ; i++) if (!state.classes.some(({ name }) => name === `Class ${i}`)) return `Class ${i}`; };

$("#open-camera").hidden = !navigator.mediaDevices?.getUserMedia;
$("#open-camera").addEventListener("click", () => openCamera());

// names, menus, keys

$("#name").addEventListener("change", (event) => change("PATCH", "/api/project", { name: event.target.value }));
$("#new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("#new-name").value.trim();
  if (name && await change("POST", "/api/classes", { name })) $("#new-name").value = "";
});
$("#undo").addEventListener("click", undo);
$("#projects").addEventListener("click", async () => { await change("POST", "/shelf/close"); location.assign("/"); });
$("#tray-table").addEventListener("click", () => save("/api/answers/tray"));
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
  if (chosen.size && event.key === "Escape") clear();
  else if (chosen.size && (event.key === "Delete" || event.key === "Backspace")) removeChosen();
  else if (chosen.size && KEYS.includes(event.key)) {
    const entry = state.classes[KEYS.indexOf(event.key)];
    if (entry) moveChosen(entry.id);
  } else if (small && (event.key === "Delete" || event.key === "Backspace")) {
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
