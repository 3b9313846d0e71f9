// The start page: projects with pictures of each; new, open, rename, duplicate, delete to the trash.

import { ask } from "./api.js";
import { $, h, plural, sync, text, toast } from "./dom.js";

async function change(method, path, body) {
  try {
    return (await (await ask(method, path, body)).json()) ?? {};
  } catch (error) {
    toast(error.message, { kind: "bad" });
    return null;
  }
}

async function open(path, body) {
  if (await change("POST", path, body)) location.reload();
}

async function draw() {
  const about = await change("GET", "/shelf/projects");
  if (!about) return;
  text($("#where"), `Everything is in ${about.folder}, and nowhere else.`);
  sync($("#projects"), about.projects, ({ key }) => key, make, (card, project) => {
    $("textarea", card).value = card.dataset.name = project.name;
    $(".pictures", card).setAttribute("aria-label", `Open ${project.name}`);
    text($(".about", card), project.error || `${plural(project.classes, "class", "classes")}, ${plural(project.images, "image")}`);
    sync($(".pictures", card), project.pictures, (id) => id, (id) => h("img", { src: `/shelf/pictures/${encodeURIComponent(project.key)}/${id}`, alt: "", loading: "lazy" }));
  });
}

function make({ key }) {
  const path = `/shelf/projects/${encodeURIComponent(key)}`;
  return h("li", { class: "card" },
    h("button", { class: "pictures", type: "button", onclick: () => open(`${path}/open`) }),
    h("textarea", { class: "quiet", rows: "1", "aria-label": "Name of the project", maxlength: "120", onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); event.target.blur(); } }, onchange: (event) => change("PATCH", path, { name: event.target.value }).then(draw) }),
    h("p", { class: "about fine" }),
    h("div", { class: "row" },
      h("button", { class: "primary", type: "button", onclick: () => open(`${path}/open`) }, "Open"),
      h("button", { class: "ghost", type: "button", onclick: () => change("POST", `${path}/duplicate`).then(draw) }, "Duplicate"),
      h("button", { class: "ghost", type: "button", onclick: async (event) => {
        const { name } = event.currentTarget.closest("li").dataset;
        const gone = await change("DELETE", path);
        if (gone) toast(`“${name}” is in the trash`, { action: "Undo", run: () => change("POST", "/shelf/restore", gone).then(draw) });
        draw();
      } }, "Delete")));
}

$("#new").addEventListener("submit", (event) => {
  event.preventDefault();
  open("/shelf/projects", { name: $("#new-project").value });
});
draw();
