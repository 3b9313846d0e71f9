// A few lines in place of a framework: make elements, keep lists in step with data, say things.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Children of `parent` become one element an item, in order; elements are kept by key, so focus and images stay.
export function sync(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const name = String(key(item));
    let element = known.get(name);
    if (!element) {
      element = make(item);
      element.dataset.key = name;
    }
    known.delete(name);
    update?.(element, item);
    return element;
  });
  for (const old of known.values()) old.remove();
  wanted.forEach((element, i) => {
    if (parent.children[i] !== element) parent.insertBefore(element, parent.children[i] ?? null);
  });
}

// Writes only what changed, so that a screen reader is not told twice.
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function toast(message, { kind = "", action, run } = {}) {
  const box = h("div", { class: `toast ${kind}` }, h("p", {}, message));
  if (action) box.append(h("button", { class: "ghost", onclick: () => { run(); box.remove(); } }, action));
  box.append(h("button", { class: "ghost close", "aria-label": "Dismiss", onclick: () => box.remove() }, "×"));
  $("#toasts").append(box);
  setTimeout(() => box.remove(), kind === "bad" ? 15000 : 7000);
}

export const percent = (p) => (p > 0.995 && p < 1 ? ">99%" : p < 0.005 && p > 0 ? "<1%" : `${Math.round(p * 100)}%`);
// An end of a range, in words that follow "between".
export const bound = (p) => (p > 0.995 && p < 1 ? "almost 100%" : p < 0.005 && p > 0 ? "almost 0%" : percent(p));
export const plural = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;
