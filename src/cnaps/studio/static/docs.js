// The page that explains /predict also tries it.

import { $, $$ } from "./dom.js";

for (const block of $$("[data-example]")) block.textContent = block.dataset.example.replaceAll("ORIGIN", location.origin);
const { status, classes } = await (await fetch("/health")).json();
$("#known").textContent = status === "ok" ? `Ready. It tells apart: ${classes.join(", ")}.` : "Nothing has been learned yet.";
$("#image").addEventListener("change", async (event) => {
  const form = new FormData();
  for (const file of event.target.files) form.append("files", file);
  $("#answer").hidden = false;
  $("#answer").textContent = "…";
  const response = await fetch("/predict", { method: "POST", body: form });
  $("#answer").textContent = JSON.stringify(await response.json(), null, 2);
});
