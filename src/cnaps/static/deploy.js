// Use it elsewhere: where it will run, the file for that, and three lines that say how.

import { $, $$, h } from "./dom.js";
import { state } from "./api.js";
import { save } from "./answers.js";

const name = () => state.name.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-+|-+$/g, "") || "project";
const WAYS = {
  here: {
    file: "task", button: "Save the task file",
    lines: () => ["Keep the file where you like: it is small and holds none of your images.",
      ["cnaps predict ", `${name()}.task`, " PHOTOS --report report.html"], "PHOTOS is a folder of images. The same line works on every computer that has cnaps."],
  },
  page: { // of one's own, where it can be made; or the network for somebody's page
    get file() { return state.pages ? "page" : "onnx"; },
    get button() { return state.pages ? "Save the page" : "Save the network"; },
    lines: () => state.pages ? ["Unpack the zip file on any web space: a folder of plain files, no program runs there.",
      "Its index.html classifies the camera or files in the visitor’s browser, and nothing is sent anywhere.", ["cnaps web FOLDER"], "tries it on this computer."] : [`Unpack the zip file and put ${name()}.onnx beside your page.`,
      "Load it with onnxruntime-web: pixels of an image go in, a probability for each class comes out.", "classes and the level for “none of these” are in the file’s metadata."],
  },
  board: {
    file: "onnx", button: "Save the network",
    lines: () => ["Unpack the zip file on the device: it holds the network and a short program.",
      ["pip install onnxruntime pillow numpy"], ["python classify.py photo.jpg"]],
  },
  server: {
    file: "task", button: "Save the task file",
    lines: () => ["Copy the file to the machine that answers.",
      ["cnaps serve ", `${name()}.task`, " --host 0.0.0.0"], ["curl -F files=@photo.jpg http://MACHINE:8766/predict"]],
  },
  keep: {
    file: "project", button: "Save the project",
    lines: () => ["Everything in one zip file: images in folders named like your classes, and the project itself.",
      "Any program opens the folders; Import brings the project back, here or elsewhere.", "A copy before a big change costs nothing."],
  },
};

function show() {
  const way = WAYS[$("#deploy [name=where]:checked").value];
  $("#deploy-lines").replaceChildren(...way.lines().map((line) => h("li", {}, Array.isArray(line) ? h("code", {}, line.join("")) : line)));
  $("#deploy-save").textContent = way.button;
  $("#deploy-save").disabled = way.file !== "project" && state.status.phase === "waiting";
  $("#deploy-wait").hidden = !$("#deploy-save").disabled;
}

for (const button of $$("[data-deploy]")) button.addEventListener("click", () => { show(); $("#deploy").showModal(); });
$("#deploy").addEventListener("change", show);
$("#deploy-save").addEventListener("click", () => {
  const way = WAYS[$("#deploy [name=where]:checked").value];
  save(`/api/export/${way.file}`, way.file === "task" ? "" : "Preparing the file.");
});
