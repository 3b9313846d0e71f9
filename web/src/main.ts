// The studio's page on its own: its modules, with a transport that needs no server.

import "./web.css";
import { isolate } from "./offline";
import { hooks, openProject, otherProjects, unsaved } from "./transport";
// @ts-expect-error plain modules of the studio
import { $, h, sync, toast } from "../../src/cnaps/static/dom.js";

hooks.isolated = isolate();
hooks.remind = () => {
  toast("This project is in this browser alone, and browsers tidy up. Export it to keep it.", { action: "Export", run: () => save("/api/export/project") });
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
// @ts-expect-error plain modules of the studio
const { save } = await import("../../src/cnaps/static/answers.js");

// projects: the menu lists the others

$("#new-project").addEventListener("click", () => { $("#more").open = false; void openProject(""); });
$("#more").addEventListener("toggle", async () => {
  const others = $("#more").open ? await otherProjects() : [];
  sync($("#others"), others, ({ id }: { id: string }) => id,
    ({ id, name }: { id: string; name: string }) => h("button", { class: "other", type: "button", onclick: () => { $("#more").open = false; void openProject(id); } }, h("b", {}, name), h("span", {}, "Open this project")));
});
