// The studio's page on its own: its modules, with a transport that needs no server.

import "./web.css";
import { isolate } from "./offline";
import { call, hooks, openProject, otherProjects, unsaved } from "./transport";
import type { Prediction } from "./protocol";
// @ts-expect-error plain modules of the studio
import { $, h, sync, toast } from "../../src/cnaps/static/dom.js";
// @ts-expect-error plain modules of the studio
import { bars, doubt } from "../../src/cnaps/static/parts.js";

hooks.isolated = isolate();
hooks.remind = () => {
  toast("This project is in this browser alone, and browsers tidy up. Export it to keep it.", { action: "Export", run: () => $("[data-export=project]").click() });
};
addEventListener("beforeunload", (event) => { if (unsaved() && !navigator.storage?.persist) event.preventDefault(); });
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  toast(event.reason?.message ?? String(event.reason), { kind: "bad" });
});
await openProject().catch((error: Error) => toast(error.message, { kind: "bad" }));
void navigator.storage?.persist?.();
// @ts-expect-error plain modules of the studio
await import("../../src/cnaps/static/main.js");

// projects: the menu lists the others

$("#new-project").addEventListener("click", () => { $("#more").open = false; void openProject(""); });
$("#more").addEventListener("toggle", async () => {
  const others = $("#more").open ? await otherProjects() : [];
  sync($("#others"), others, ({ id }: { id: string }) => id,
    ({ id, name }: { id: string; name: string }) => h("button", { class: "other", type: "button", onclick: () => { $("#more").open = false; void openProject(id); } }, h("b", {}, name), h("span", {}, "Open this project")));
});

// live answers of the camera

const dialog = $("#camera"), video = $("#video");
const live = h("div", { class: "live", "aria-live": "off" }, h("p", { class: "doubt", hidden: true }), h("ol", { class: "bars" }), h("p", { class: "fine rate" }));
video.after(live);
new MutationObserver(() => { if (dialog.open) void look(); }).observe(dialog, { attributeFilter: ["open"] });

async function look(): Promise<void> {
  let seen = 0, started = performance.now();
  while (dialog.open) {
    await new Promise(requestAnimationFrame);
    if (!video.videoWidth) continue;
    const bitmap = await createImageBitmap(video);
    const found = await call<Prediction | undefined>({ kind: "frame", bitmap }, [bitmap]).catch(() => undefined);
    if (!found) {
      live.children[2].textContent = "Answers come here once two classes have examples.";
      await new Promise((resolve) => setTimeout(resolve, 300));
      continue;
    }
    doubt(live.children[0], found);
    bars(live.children[1], found);
    if (++seen % 10 === 0) {
      live.children[2].textContent = `${((10_000) / (performance.now() - started)).toFixed(0)} images a second`;
      started = performance.now();
    } else if (seen === 1) live.children[2].textContent = "";
  }
}
