// The test set: images that are held out and never learned from, and how they are answered.

import { change, state, undo } from "./api.js";
import { $, bound, h, percent, plural, sync, text, toast } from "./dom.js";
import { classHeld, heldOut, hue, imagesIn } from "./parts.js";
import { drawConfusion, drawWorst, scale, thumbs } from "./views.js";

export function drawHeld() {
  const found = state.held_out, held = state.images.filter(({ place }) => place.startsWith("h")).length;
  text($("#tab-held b"), found?.total ? percent(found.correct / found.total) : "");
  $("#held-score").replaceChildren(...found ? [
    h("p", { class: "figure" }, percent(found.correct / found.total)),
    h("div", {}, scale(found), h("p", {}, `${found.correct} of ${plural(found.total, "image")} answered rightly, none of which was learned from. With so many images the truth may lie between ${bound(found.low)} and ${bound(found.high)}.`),
      found.total < 30 ? h("p", { class: "fine" }, "The more images are held out, the narrower the range: thirty say something, a hundred a good deal.") : null),
  ] : [h("p", { class: "none" }, held ? "The answers come as soon as two classes have examples."
    : "How good is it on images that it has not seen? Drop a folder here whose sub-folders are named like your classes, or add images to a class below. They are answered and counted, and never learned from.")]);
  const wrong = drawConfusion($("#held-confusion"), found);
  $("#held-mistakes").hidden = !wrong.length;
  if (found) drawWorst($("#held-worst"), found, (image) => classHeld(image.place));
  $("#hold-out").disabled = !state.classes.some(({ id }) => imagesIn(id).length >= 5);
  const mistaken = new Map((found?.mistakes ?? []).map((each) => [each.id, each]));
  sync($("#held-classes"), state.classes, ({ id }) => id,
    ({ id }) => h("li", { "data-place": heldOut(id) }, h("div", { class: "head" }, h("h3"), h("span", { class: "count" }),
      h("button", { class: "ghost", type: "button", "data-pick": heldOut(id), title: "Add images to test with" }, "Add")),
      h("ul", { class: "thumbs" })),
    (card, { id, name }) => {
      const images = imagesIn(heldOut(id));
      card.className = `card ${hue(id)}`;
      text($("h3", card), name);
      text($(".count", card), String(images.length));
      $("button", card).setAttribute("aria-label", `Add images of ${name} to test with`);
      thumbs($("ul", card), images, (image) => mistaken.has(image.id) ? ", answered wrongly" : "");
    });
}

$("#hold-out").addEventListener("click", async () => {
  const done = await change("POST", "/api/held-out", { share: 0.2 });
  if (done) toast(`${plural(done.held, "example")} held out: no longer learned from`, { action: "Undo", run: undo });
});
