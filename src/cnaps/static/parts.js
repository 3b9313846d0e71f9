// Pieces that several views share: thumbnails, bars, colours, the viewer.

import { move, remove, state } from "./api.js";
import { $, h, percent, sync, text } from "./dom.js";
import { source } from "./transport.js";

export const KEYS = "1234567890qwertyuiop";

export const classOf = (id) => state.classes.find((entry) => entry.id === id);
// images of class c3 that are held out are in the place h3
export const heldOut = (id) => `h${id.slice(1)}`;
export const classHeld = (place) => `c${place.slice(1)}`;
export const imagesIn = (place) => state.images.filter((image) => image.place === place);
export const hue = (id) => `hue-${(Number(id.slice(1)) - 1) % 10} shade-${Math.floor((Number(id.slice(1)) - 1) / 10) % 3}`;
export { source };

export function placeName(place) {
  if (place.startsWith("h")) return `${classOf(classHeld(place))?.name}, held out`;
  return place === "test" ? "tray" : place === "pool" ? "unlabelled" : classOf(place)?.name ?? "";
}

export function thumb(image) {
  return h("button", { class: "thumb", type: "button", "data-id": image.id, draggable: true },
    h("img", { src: source(image.id), alt: "", loading: "lazy", draggable: false }));
}

export function labelThumb(button, image, note = "") {
  button.setAttribute("aria-label", `${image.name}, ${placeName(image.place)}${note}`);
  button.title = image.name;
}

// Bars of the most probable classes.
export function bars(list, prediction, count = 3) {
  sync(list, prediction ? prediction.top.slice(0, count).filter(([id]) => classOf(id)) : [], ([id]) => id,
    () => h("li", {}, h("span"), h("b"), h("i", { class: "bar" }, h("i"))),
    (row, [id, p]) => {
      text(row.children[0], classOf(id).name);
      text(row.children[1], percent(p));
      row.className = hue(id);
      row.children[2].firstChild.style.width = `${(100 * p).toFixed(1)}%`;
    });
}

// marks of an answer, and what they mean
export const DOUBTS = {
  none: ["none of these?", "It is less like every class than nineteen in twenty examples are like the others of their own."],
  unsure: ["not sure", "The best answer is below 80%: take it as a guess."],
};

export function doubt(element, prediction) {
  const words = DOUBTS[prediction?.doubt]?.[0] ?? "";
  text(element, words);
  element.title = DOUBTS[prediction?.doubt]?.[1] ?? "";
  element.className = `doubt ${prediction?.doubt ?? ""}`;
  element.hidden = !words;
}

// Buttons for every class, with the key that does the same.
export function choices(container, chosen, likely, pick, more = []) {
  const places = [...state.classes.map((entry, i) => ({ ...entry, key: KEYS[i] ?? "" })), ...more];
  sync(container, places, (place) => place.id,
    (place) => h("button", { type: "button", onclick: () => container.pick(place.id) }, h("kbd"), h("span")),
    (button, place) => {
      button.className = place.plain ? "plain" : `${hue(place.id)} ${place.id === likely ? "likely" : ""}`;
      button.ariaPressed = String(place.id === chosen);
      text(button.children[0], place.key ?? "");
      text(button.children[1], place.name);
    });
  container.pick = pick;
}

let shown = null;

export function view(id) {
  shown = id;
  drawViewer();
  if (!$("#viewer").open) $("#viewer").showModal();
}

export function drawViewer() {
  const image = state.images.find((entry) => entry.id === shown);
  if (!image) return $("#viewer").open && $("#viewer").close();
  if (!$("#viewer-image").src.endsWith(source(image.id))) $("#viewer-image").src = source(image.id);
  text($("#viewer-name"), image.name);
  const list = $("#viewer-bars ol") ?? $("#viewer-bars").appendChild(h("ol", { class: "bars" }));
  bars(list, state.predictions[image.id], 4);
  const go = (place) => { $("#viewer").close(); move([image.id], place); };
  const trays = [{ id: "test", name: "Tray, to try", plain: true }, { id: "pool", name: "Unlabelled", plain: true }];
  if (!["test", "pool"].includes(image.place)) trays.unshift({ id: heldOut(image.place), name: "Test set, held out", plain: true });
  choices($("#viewer-places"), image.place, state.predictions[image.id]?.top[0][0], go, trays);
  $("#viewer-remove").onclick = () => { $("#viewer").close(); remove([image.id]); };
}

export function viewerKey(key) {
  const index = KEYS.indexOf(key);
  if (shown && index >= 0 && state.classes[index]) $("#viewer-places").pick(state.classes[index].id);
}
