// The views and the tray, each drawn from the state.

import { change, confirm, move, removeClass, state } from "./api.js";
import { $, bound, h, percent, plural, svg, sync, text } from "./dom.js";
import { matrix } from "./answers.js";
import { DOUBTS, KEYS, bars, choices, classOf, doubt, hue, imagesIn, labelThumb, placeName, source, thumb, view } from "./parts.js";

export const thumbs = (list, images, note = () => "") => sync(list, images, (image) => image.id,
  (image) => h("li", {}, thumb(image)),
  (item, image) => {
    const words = note(image);
    item.className = words ? "marked" : "";
    labelThumb(item.firstChild, image, words);
    if (words) item.firstChild.title = `${image.name}${words}`;
  });

// labels that look wrong, without those that a person has looked at and found right
const suspected = () => {
  const images = new Map(state.images.map((image) => [image.id, image]));
  return (state.review?.suspects ?? []).filter(({ id, better }) => {
    const image = images.get(id);
    return image && !image.right && classOf(better) && classOf(image.place) && image.place !== better; // the review may be older than a move
  });
};

export function drawTeach() {
  const odd = new Map(suspected().map((entry) => [entry.id, entry]));
  $("#welcome").hidden = state.classes.length > 0;
  $("#dots").hidden = !odd.size;
  sync($("#classes"), state.classes, (entry) => entry.id, makeClass, (card, entry) => {
    const images = imagesIn(entry.id);
    const name = $("textarea", card);
    if (document.activeElement !== name && name.value !== entry.name) fill(name, entry.name);
    card.className = `card ${hue(entry.id)}`;
    card.setAttribute("aria-label", `Class ${entry.name}`);
    const total = images.length + (entry.learned?.[1] ?? 0);
    text($(".count", card), String(total));
    $(".count", card).title = plural(total, "example");
    name.title = entry.name;
    $("[data-all]", card).hidden = images.length < 2;
    thumbs($("ul", card), images, (image) => odd.has(image.id) ? ", label looks wrong: see Review" : "");
    text($(".hint", card), entry.learned ? `${plural(entry.learned[1], "example")} learned elsewhere` : images.length ? "" : "Add images, take some with the camera, or drop or paste them here.");
  });
}

// names wrap, whatever their length
function fill(area, words) {
  area.value = words.replace(/\n/g, " ");
  if (CSS.supports("field-sizing", "content")) return;
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

function makeClass(entry) {
  const rename = (event) => {
    const name = event.target.value.trim();
    if (name && name !== classOf(entry.id)?.name) change("PATCH", `/api/classes/${entry.id}`, { name });
    else event.target.value = classOf(entry.id)?.name ?? "";
  };
  return h("li", { "data-place": entry.id },
    h("div", { class: "head" },
      h("textarea", { class: "quiet", "aria-label": "Name of the class", rows: "1", maxlength: "120", spellcheck: false, onchange: rename,
        oninput: (event) => fill(event.target, event.target.value), onkeydown: (event) => event.key === "Enter" && (event.preventDefault(), event.target.blur()) }),
      h("span", { class: "count" }),
      h("button", { class: "ghost", type: "button", "data-pick": entry.id, title: "Add images" }, "Add"),
      h("button", { class: "ghost", type: "button", "data-camera": entry.id, title: "Take pictures with the camera",
        hidden: !navigator.mediaDevices?.getUserMedia }, "Camera"),
      h("button", { class: "ghost", type: "button", "data-all": "", title: "Choose all images of this class" }, "All"),
      h("button", { class: "ghost", type: "button", "aria-label": `Remove the class ${entry.name}`, title: "Remove the class",
        onclick: () => removeClass(classOf(entry.id)) }, "×")),
    h("ul", { class: "thumbs" }), h("p", { class: "hint" }));
}

export function drawTest() {
  const images = imagesIn("test").reverse(), explained = new Set();
  sync($("#test"), images, (image) => image.id,
    (image) => h("li", { class: "answer" }, thumb(image), h("div", {}, h("p", { class: "doubt" }), h("ol", { class: "bars" }), h("p", { class: "hint" }))),
    (item, image) => {
      const prediction = state.predictions[image.id];
      const [best, p] = prediction?.top[0] ?? [];
      labelThumb(item.firstChild, image, best && classOf(best) ? `: ${classOf(best).name}, ${percent(p)}` : "");
      doubt($(".doubt", item), prediction);
      bars($(".bars", item), prediction);
      const mark = prediction?.doubt, meaning = explained.has(mark) ? "" : DOUBTS[mark]?.[1] ?? ""; // once each
      explained.add(mark);
      text($(".hint", item), prediction ? meaning : state.status.phase === "waiting" ? "Waits for two classes with examples." : "Looking…");
    });
}

const skipped = new Set();

// What to label next: proposals first, then whatever else is there.
export function queue() {
  const pool = imagesIn("pool").filter((image) => !skipped.has(image.id));
  const rank = new Map(state.suggestions.map((id, i) => [id, i]));
  return pool.sort((a, b) => (rank.get(a.id) ?? 1e9) - (rank.get(b.id) ?? 1e9));
}

export function drawLabel() {
  const images = imagesIn("pool");
  text($("#tab-label b"), images.length ? String(images.length) : "");
  const next = queue();
  const proposed = new Set(state.suggestions.slice(0, 8));
  const rest = images.filter((image) => skipped.has(image.id));
  thumbs($("#pool"), [...next, ...rest], (image) => proposed.has(image.id) ? ", worth labelling" : "");
  const [image] = next;
  const box = $("#asking");
  box.hidden = $("#label .dots").hidden = !image;
  if (!image) return;
  if (box.dataset.id !== image.id) {
    box.dataset.id = image.id;
    box.replaceChildren(h("img", { src: source(image.id), alt: image.name }),
      h("div", {}, h("p", { class: "why" }), h("h2", {}, "What is this?"), h("div", { class: "choices" }),
        h("div", { class: "row" },
          h("button", { class: "ghost", type: "button", onclick: skip }, h("kbd", {}, "space"), " Skip"),
          h("button", { class: "ghost", type: "button", onclick: () => move([image.id], "test") }, "To the tray"),
          h("form", { class: "row", onsubmit: (event) => newClass(event, image.id) },
            h("input", { "aria-label": "A new class for this image", placeholder: "another class", maxlength: "120", autocomplete: "off" }), h("button", {}, "Add")))));
  }
  const prediction = state.predictions[image.id];
  text($(".why", box), why(image, prediction));
  choices($(".choices", box), null, prediction?.top[0][0], (place) => move([image.id], place));
}

async function newClass(event, id) {
  event.preventDefault();
  const name = event.target.firstChild.value.trim();
  const made = name && await change("POST", "/api/classes", { name });
  if (made) move([id], made.id);
}

function why(image, prediction) {
  if (!state.classes.length) return "Name a class for it.";
  if (!prediction) return "Any label helps: there are no proposals before two classes have examples.";
  if (prediction.doubt === "none") return "This looks like none of your classes.";
  const [[best, p], second] = prediction.top;
  if (prediction.doubt === "unsure" && second && classOf(second[0])) return `Torn between ${classOf(best)?.name} and ${classOf(second[0]).name}: a label here teaches most.`;
  return `Probably ${classOf(best)?.name} (${percent(p)}). A label confirms it.`;
}

export function skip() {
  const [image] = queue();
  if (image) skipped.add(image.id);
  if (!queue().length) skipped.clear();
  drawLabel();
}

export function labelKey(key) {
  if (key === " ") return skip();
  const entry = state.classes[KEYS.indexOf(key)];
  const [image] = queue();
  if (entry && image) move([image.id], entry.id);
}

export function drawReview() {
  const review = state.review;
  const box = $("#score");
  $("#second-look").hidden = !review;
  if (!review) box.replaceChildren(h("p", { class: "none" }, state.classes.some(({ learned }) => learned)
    ? "This project goes on from a task that was learned elsewhere. The examples of that task are not here, so none can be left out in turn: there is nothing to review."
    : "There is something to review once two classes have examples."));
  else {
    const share = review.total ? review.correct / review.total : 0;
    const few = state.classes.filter((entry) => imagesIn(entry.id).length < 3).map((entry) => entry.name);
    box.replaceChildren(
      h("p", { class: "figure" }, review.enough ? percent(share) : "Too few images"),
      h("div", {}, scale(review),
        h("p", {}, review.total
          ? `${review.correct} of ${plural(review.total, "example")} recognised when left out in turn. With so many examples the truth may lie between ${bound(review.low)} and ${bound(review.high)}.`
          : "Each class has one example only: nothing can be left out."),
        review.enough ? null : h("p", { class: "fine" }, few.length && few.length <= 6
          ? `To say anything, give at least three examples of each class: ${few.join(", ")} ${few.length === 1 ? "has" : "have"} fewer.`
          : "To say anything, give at least three examples of each class and ten in all.")));
  }
  drawMistakes(review);
  const list = suspected();
  text($("#tab-review b"), list.length ? String(list.length) : "");
  sync($("#suspects"), list, ({ id }) => id,
    (entry) => h("li", {}, thumb({ id: entry.id }), h("p"), h("div", { class: "row" },
      h("button", { type: "button", onclick: (event) => move([entry.id], event.currentTarget.dataset.better) }),
      h("button", { type: "button", class: "ghost", onclick: () => confirm([entry.id]) }, "It is right"))),
    (item, entry) => {
      const image = state.images.find(({ id }) => id === entry.id);
      const own = classOf(image.place).name, better = classOf(entry.better).name;
      labelThumb(item.children[0], image);
      text(item.children[1], `Labelled ${own}, but the other examples say ${better} (${percent(entry.better_fit)} against ${percent(entry.fit)}).`);
      const button = item.children[2].firstChild;
      button.dataset.better = entry.better;
      text(button, `Move to ${better}`);
    });
}

// A share of right answers, and the range in which the truth may lie.
export function scale({ correct, total, low, high }) {
  const line = h("div", { class: "scale", role: "img", "aria-label": `between ${bound(low)} and ${bound(high)}` }, h("i"), h("b"));
  line.children[0].style.left = `${100 * low}%`;
  line.children[0].style.right = `${100 - 100 * high}%`;
  line.children[1].style.left = `${total ? (100 * correct) / total : 0}%`;
  return line;
}

// What was taken for what; the pairs of classes that there still are.
export function drawConfusion(box, found) {
  const pairs = (found?.confusion ?? []).filter(([truth, answer]) => classOf(truth) && classOf(answer));
  const ids = state.classes.map(({ id }) => id).filter((id) => pairs.some((pair) => pair.includes(id)));
  const rows = ids.map((truth) => ids.map((answer) => pairs.find(([a, b]) => a === truth && b === answer)?.[2] ?? 0));
  box.replaceChildren(matrix(ids.map((id) => classOf(id).name), rows));
  return pairs;
}

// The surest of the wrong answers; `truth` is the class of an image.
export function drawWorst(list, found, truth) {
  const known = (found.mistakes ?? []).map((each) => ({ ...each, image: state.images.find(({ id }) => id === each.id) }))
    .filter(({ image, answer }) => image && classOf(answer) && classOf(truth(image)));
  sync(list, known, ({ id }) => id, ({ id }) => h("li", {}, thumb({ id }), h("p")),
    (item, { image, answer, probability }) => {
      labelThumb(item.children[0], image);
      text(item.children[1], `${classOf(truth(image)).name} taken for ${classOf(answer).name}, ${percent(probability)} sure`);
    });
}

// What was taken for what when it was left out, what to do about it, and the surest of the wrong answers.
function drawMistakes(review) {
  const pairs = drawConfusion($("#confusion"), review);
  $("#mistakes").hidden = !pairs.length;
  if (!pairs.length) return;
  const wrong = pairs.filter(([truth, answer]) => truth !== answer).sort((a, b) => b[2] - a[2]);
  const [worst] = wrong, doubted = suspected().length, few = state.classes.filter(({ id, learned }) => !learned && imagesIn(id).length < 5);
  const advice = [];
  if (doubted) advice.push(`${doubted === 1 ? "One label looks" : `${doubted} labels look`} wrong: look at ${doubted === 1 ? "it" : "them"} first, above. One click moves an image or says that it is right.`);
  if (worst && (worst[2] > 1 || !doubted)) advice.push(`“${classOf(worst[0]).name}” is taken for “${classOf(worst[1]).name}” most often (${plural(worst[2], "time")}): add images of both in which the difference is plain, or make them one class.`);
  if (few.length) advice.push(`${few.length === 1 ? `“${few[0].name}” has` : `${few.length} classes have`} fewer than five examples: the next ones help most there.`);
  if (review.enough && !worst) advice.push("Every example is recognised by the others. Now try images it has not seen: under Test set, or a folder under Classify.");
  else if (!state.held_out) advice.push("To know how good it is on new images, hold some out under Test set: they are never learned from.");
  $("#advice").replaceChildren(...advice.map((line) => h("li", {}, line)));
  drawWorst($("#worst"), review, (image) => image.place);
}

export function drawMap() {
  const plane = $("#plane");
  const images = state.images.filter(({ id }) => state.points[id]);
  $("#map .none").hidden = images.length > 0;
  sync(plane, images, ({ id }) => id, makePoint, (point, image) => {
    const [x, y] = state.points[image.id];
    const kind = image.place === "test" || image.place === "pool" ? image.place : hue(image.place);
    point.setAttribute("class", `point ${kind}`);
    point.style.transform = `translate(${x}px, ${(-y * 0.7).toFixed(3)}px)`;
    point.setAttribute("aria-label", `${image.name}, ${placeName(image.place)}`);
  });
  sync($("#legend"), [...state.classes, { id: "test", name: "tray" }, { id: "pool", name: "unlabelled" }], ({ id }) => id,
    () => h("li"), (item, entry) => { item.className = entry.id.startsWith("c") ? hue(entry.id) : entry.id; text(item, entry.name); });
}

function makePoint(image) {
  const point = svg("circle", { r: 0.022, tabindex: 0, role: "button" });
  const peek = $("#peek");
  const show = () => {
    $("img", peek).src = source(image.id);
    text($("figcaption", peek), point.getAttribute("aria-label"));
    const box = point.getBoundingClientRect(), plane = peek.parentElement.getBoundingClientRect();
    peek.style.left = `${Math.min(box.right - plane.left + 8, plane.width - 170)}px`;
    peek.style.top = `${Math.max(0, Math.min(box.top - plane.top - 40, plane.height - 190))}px`;
    peek.hidden = false;
  };
  const hide = () => { peek.hidden = true; };
  for (const [event, run] of [["pointerenter", show], ["focus", show], ["pointerleave", hide], ["blur", hide], ["click", () => view(image.id)]]) point.addEventListener(event, run);
  point.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // the key would go on to press the first button of the viewer
    view(image.id);
  });
  return point;
}
