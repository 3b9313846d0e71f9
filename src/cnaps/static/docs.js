// The page that explains /predict also tries it; of a folder of tasks, with the first one.

import { $, $$ } from "./dom.js";

const { status, classes } = await (await fetch("/health")).json();
const tasks = classes ? [] : (await (await fetch("/tasks")).json()).tasks;
const path = classes ? "/predict" : `/tasks/${encodeURIComponent(tasks[0] ?? "NAME")}/predict`;
const ready = classes ? `It tells apart: ${classes.join(", ")}.` : `Its tasks: ${tasks.join(", ")}.`;
$("#known").textContent = status === "ok" ? `Ready. ${ready}` : "Nothing has been learned yet.";
for (const block of $$("[data-example]")) {
  block.textContent = block.dataset.example.replaceAll("ORIGIN/predict", location.origin + path);
}
$("#image").addEventListener("change", async (event) => {
  const form = new FormData();
  for (const file of event.target.files) form.append("files", file);
  $("#answer").hidden = false;
  $("#answer").textContent = "…";
  const response = await fetch(path, { method: "POST", body: form });
  $("#answer").textContent = JSON.stringify(await response.json(), null, 2);
});
