// Classify: any number of images, dropped or by the path of their folder; answers to look at and to take away.

import { ask, change, state } from "./api.js";
import { $, bound, h, percent, plural, sync, text, toast } from "./dom.js";
import { answerSource } from "./transport.js";

let about = null, sending = null, asking = false;

export async function save(path, prepare = "") {
  if (prepare) toast(prepare);
  try {
    const response = await ask("GET", path);
    const name = response.headers.get("Content-Disposition").match(/filename="(.+)"/)[1];
    const link = h("a", { href: URL.createObjectURL(await response.blob()), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    toast(`Saved as ${name} in your downloads`);
  } catch (error) {
    toast(error.message, { kind: "bad" });
  }
}

// files: [{file, path}]
export async function classify(files) {
  files = files.filter(({ file }) => !file.name.startsWith(".") && file.name !== "Thumbs.db");
  if (!files.length) return toast("There are no images in it.", { kind: "bad" });
  if (!state.predictions || state.status.phase === "waiting") return toast("Give two classes some examples first.", { kind: "bad" });
  await change("DELETE", "/api/answers");
  sending = { done: 0, total: files.length };
  try {
    for (let i = 0; i < files.length; i += 8) {
      const form = new FormData();
      for (const { file, path } of files.slice(i, i + 8)) {
        form.append("files", file, file.name);
        form.append("paths", path ?? file.name);
      }
      await ask("POST", "/api/answers/files", form);
      sending.done = Math.min(files.length, i + 8);
      draw();
    }
    await ask("POST", "/api/answers/start");
  } catch (error) {
    toast(error.message, { kind: "bad" });
  }
  sending = null;
  follow();
}

async function follow() {
  if (asking) return;
  asking = true;
  do {
    try { about = await (await ask("GET", "/api/answers")).json(); } catch { break; }
    draw();
    if (about.phase === "running") await new Promise((resolve) => setTimeout(resolve, 400));
  } while (about.phase === "running");
  asking = false;
}

export function matrix(names, rows) {
  const cell = (count, i, j) => h("td", { class: count ? (i === j ? "right" : "wrong") : "zero" }, String(count));
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "What was taken for what" }, h("table", { class: "matrix" },
    h("tr", {}, h("td", { class: "corner" }, "it is … (rows), answered … (columns)"), names.map((name, j) => h("th", { scope: "col", title: name }, String(j + 1)))),
    names.map((name, i) => rows[i].some(Boolean) || rows.some((row) => row[i]) ? h("tr", {}, h("th", { scope: "row", title: name }, h("span", {}, String(i + 1)), ` ${name}`), rows[i].map((count, j) => cell(count, i, j))) : null)));
}

function draw() {
  const busy = sending || about?.phase === "running";
  const done = sending ? sending.done : about?.done ?? 0, total = sending ? sending.total : about?.total ?? 0;
  $("#answers-progress").hidden = !busy;
  $("#answers-progress progress").max = Math.max(total, 1);
  $("#answers-progress progress").value = done;
  text($("#answers-progress span"), sending ? `Reading ${done} of ${plural(total, "image")}` : `Classifying ${done} of ${plural(total, "image")}`);
  $("#answers-folder").hidden = !about?.local;
  if (about?.phase === "failed") toast(about.message, { kind: "bad" });
  const rows = about?.rows ?? [];
  $("#answers-found").hidden = !rows.length;
  if (!rows.length) return;
  const answered = about.done - (about.skipped_total ?? 0);
  const skipped = about.skipped_total ? `, ${about.skipped_total} could not be read` : "";
  text($("#answers-title"), `${plural(about.done, "image")}${about.folder ? ` in ${about.folder}` : ""}${skipped}`);
  sync($("#answers-counts"), about.counts, ([name]) => name, () => h("li", {}, h("span"), h("b")),
    (item, [name, count]) => { text(item.children[0], name); text(item.children[1], String(count)); });
  drawAccuracy(about.accuracy);
  const words = $("#answers-search").value.toLowerCase();
  const fitting = rows.filter((row) => `${row.name} ${row.label} ${row.truth ?? ""}`.toLowerCase().includes(words));
  text($("#answers-shown"), rows.length < answered ? `The ${rows.length} least certain are shown; the files have all ${answered}.` : "");
  sync($("#answers-rows"), fitting, (row) => row.index,
    (row) => h("tr", {}, h("td", {}, h("img", { src: answerSource(row.index), alt: "", loading: "lazy" })), h("td"), h("td"), h("td")),
    (item, row) => {
      const wrong = row.truth !== null && row.truth !== row.label;
      item.className = wrong ? "wrong" : "";
      text(item.children[1], row.name);
      text(item.children[2], row.none ? `none of these (nearest: ${row.best})` : row.label);
      text(item.children[3], [row.none ? "" : percent(row.probability), wrong ? `it is ${row.truth}` : row.truth !== null ? "right" : ""].filter(Boolean).join(", "));
    });
}

function drawAccuracy(counted) {
  const box = $("#answers-accuracy");
  box.hidden = !counted;
  if (!counted) return box.replaceChildren();
  const share = counted.correct / counted.total;
  box.replaceChildren(h("p", { class: "figure" }, percent(share)), h("div", {},
    h("p", {}, `${counted.correct} of ${plural(counted.total, "image")} in folders named like your classes are right. With so many images the truth may lie between ${bound(counted.low)} and ${bound(counted.high)}. These images were not learned from: a test that counts.`),
    counted.names.length <= 40 ? matrix(counted.names, counted.matrix) : null));
}

$("#answers-files").addEventListener("change", (event) => {
  const files = [...event.target.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
  event.target.value = "";
  classify(files);
});
if (matchMedia("(hover: none) and (pointer: coarse)").matches) $("#answers-files").webkitdirectory = false; // telephones have no folders
$("#answers-pick").addEventListener("click", () => $("#answers-files").click());
$("#answers-folder").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (await change("POST", "/api/answers", { folder: $("#answers-path").value }) !== undefined) follow();
});
$("#answers-search").addEventListener("input", draw);
for (const kind of ["table", "report", "sorted"]) {
  $(`#answers-${kind}`).addEventListener("click", () => save(`/api/answers/${kind}`, kind === "sorted" ? "Packing the images." : kind === "report" ? "Drawing the report." : ""));
}
$("#answers-clear").addEventListener("click", async () => { await change("DELETE", "/api/answers"); about = null; follow(); });
follow();
