// Several images at once: Ctrl-click, Shift-click, a box, or all of a class; then moved or removed together.

import { move, remove, state } from "./api.js";
import { $, $$, h, plural, sync, text } from "./dom.js";
import { heldOut, placeName } from "./parts.js";

export const chosen = new Set();
let last = null;

export function clear() {
  chosen.clear();
  drawSelection();
}

export function all(list) {
  for (const small of $$(".thumb", list)) chosen.add(small.dataset.id);
  drawSelection();
}

// Whether a click was about choosing, rather than opening.
export function clicked(small, event) {
  if (event.shiftKey && last?.isConnected && last.closest("ul") === small.closest("ul")) {
    const row = $$(".thumb", small.closest("ul")), ends = [row.indexOf(last), row.indexOf(small)].sort((a, b) => a - b);
    for (const each of row.slice(ends[0], ends[1] + 1)) chosen.add(each.dataset.id);
  } else if (event.ctrlKey || event.metaKey || event.shiftKey || chosen.size) {
    chosen.has(small.dataset.id) ? chosen.delete(small.dataset.id) : chosen.add(small.dataset.id);
  } else {
    last = small;
    return false;
  }
  last = small;
  drawSelection();
  return true;
}

export const moveChosen = (place) => { move([...chosen], place); clear(); };
export const removeChosen = () => { remove([...chosen]); clear(); };

export function drawSelection() {
  for (const id of chosen) if (!state.images.some((image) => image.id === id)) chosen.delete(id);
  for (const small of $$(".thumb")) {
    const on = chosen.has(small.dataset.id);
    if (on !== (small.ariaPressed === "true")) on ? small.setAttribute("aria-pressed", "true") : small.removeAttribute("aria-pressed");
  }
  $("#selection").hidden = !chosen.size;
  text($("#selection b"), `${plural(chosen.size, "image")} chosen`);
  const places = ["", ...state.classes.map(({ id }) => id), "pool", "test", ...state.classes.map(({ id }) => heldOut(id))];
  sync($("#selection select"), places, (place) => place || "none", (place) => h("option", { value: place }),
    (option, place) => text(option, place ? placeName(place) : "Move to …"));
}

$("#selection select").addEventListener("change", (event) => { if (event.target.value) moveChosen(event.target.value); event.target.value = ""; });
$("#selection [data-remove]").addEventListener("click", removeChosen);
$("#selection [data-clear]").addEventListener("click", clear);

// a box, drawn from the space between images
let box = null;
document.addEventListener("pointerdown", (event) => {
  const list = event.target.closest?.(".thumbs");
  if (!list || event.target.closest(".thumb") || event.button) return;
  event.preventDefault();
  box = { list, x: event.clientX, y: event.clientY, frame: document.body.appendChild(h("div", { class: "frame" })) };
});
document.addEventListener("pointermove", (event) => {
  if (!box) return;
  const [left, right] = [box.x, event.clientX].sort((a, b) => a - b), [top, bottom] = [box.y, event.clientY].sort((a, b) => a - b);
  Object.assign(box.frame.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
  for (const small of $$(".thumb", box.list)) {
    const at = small.getBoundingClientRect();
    if (at.right > left && at.left < right && at.bottom > top && at.top < bottom) chosen.add(small.dataset.id);
  }
  drawSelection();
});
document.addEventListener("pointerup", () => { box?.frame.remove(); box = null; });
