// Filters, order and galleries of the report; without it every image is there, the least certain first.
const form = document.querySelector(".controls");
const list = document.querySelector(".cards");
const cards = [...list.querySelectorAll(".card")].map((element) => {
  const { label, file, p, wrong, none } = element.dataset;
  const names = [...element.querySelectorAll("li > span, .truth")].map((name) => name.textContent);
  const text = [file, ...names].join(" ").toLowerCase();
  return { element, label, file, p: Number(p), wrong: wrong !== undefined, none: none !== undefined, text };
});
const certain = {
  "": () => true,
  unsure: (card) => card.p < 0.5,
  sure: (card) => card.p >= 0.5,
  high: (card) => card.p >= 0.95,
  none: (card) => card.none,
  wrong: (card) => card.wrong,
};
const orders = {
  least: (a, b) => a.p - b.p,
  most: (a, b) => b.p - a.p,
  file: (a, b) => a.file.localeCompare(b.file, undefined, { numeric: true }),
  wrong: (a, b) => b.wrong - a.wrong || b.p - a.p,
};

function show() {
  const chosen = Object.fromEntries(new FormData(form));
  const words = chosen.search.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (card) =>
    (!chosen.label || card.label === chosen.label) &&
    certain[chosen.certainty](card) &&
    words.every((word) => card.text.includes(word));
  const shown = cards.filter(fits).sort(orders[chosen.order]);
  const groups = new Map();
  for (const card of shown) {
    const key = chosen.group ? card.label : "";
    groups.set(key, [...(groups.get(key) ?? []), card]);
  }
  const rows = [...groups].sort(([a], [b]) => a.localeCompare(b)).flatMap(([name, members]) => {
    const heading = document.createElement("li");
    heading.className = "heading";
    heading.textContent = `${name}  (${members.length})`;
    return [...(name ? [heading] : []), ...members.map((card) => card.element)];
  });
  list.replaceChildren(...rows);
  form.querySelector("output").textContent =
    shown.length === cards.length ? "" : `${shown.length.toLocaleString()} of ${cards.length.toLocaleString()} shown`;
}

form.hidden = false;
form.addEventListener("input", show);
form.addEventListener("submit", (event) => event.preventDefault());
