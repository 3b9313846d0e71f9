// Any number of images, classified and not kept: the port of `studio/answers.py`, in the page's memory.

import { InputError } from "./errors";
import { confusion, wilson } from "./insight";
import type { Found } from "./protocol";
import { compareNames } from "./task";
import { writeZip } from "./zip";

export const NONE = "none of these"; // the answer for an image that is none of the classes
const MOST = 20_000, SHOWN = 400, BATCH = 16;
type Result = Found & { index: number; label: string; truth: string | null };
type Classify = (files: Blob[]) => Promise<(Found | { error: string })[]>;

const fold = (name: string) => name.normalize("NFC").toLowerCase();

export class Answers {
  private phase = "empty";
  private message = "";
  private files: [string, Blob][] = [];
  private results: Result[] = [];
  private skipped: { name: string; reason: string }[] = [];
  private readonly addresses = new Map<number, string>(); // of pictures
  private round = 0;

  constructor(private readonly classify: Classify) {}

  clear(): void {
    this.round++;
    this.phase = "empty";
    for (const address of this.addresses.values()) URL.revokeObjectURL(address);
    this.addresses.clear();
    this.files = [];
    this.results = [];
    this.skipped = [];
  }

  drop(files: [string, Blob][]): void {
    if (this.phase !== "dropping") this.clear();
    this.phase = "dropping";
    if (this.files.length + files.length > MOST) throw new InputError(`at most ${MOST.toLocaleString("en")} images at once`);
    this.files.push(...files);
  }

  start(names: string[]): void {
    if (names.length < 2) throw new InputError("nothing has been learned yet: give examples of at least two classes");
    if (!this.files.length) throw new InputError("there are no images: drop some");
    this.phase = "running";
    void this.run(names, this.round).catch((error: Error) => { [this.phase, this.message] = ["failed", error.message]; });
  }

  private async run(names: string[], round: number): Promise<void> {
    const known = new Map([...names, NONE].flatMap((name) => [[fold(name), name], [name, name]] as const));
    for (let i = 0; i < this.files.length; i += BATCH) {
      const part = this.files.slice(i, i + BATCH), found = await this.classify(part.map(([, file]) => file));
      if (round !== this.round) return;
      found.forEach((each, j) => {
        const [name] = part[j];
        if ("error" in each) this.skipped.push({ name, reason: each.error });
        else this.results.push({ ...each, index: i + j, label: each.stranger ? NONE : each.ranking[0][0], truth: truthOf(name, known) });
      });
    }
    this.phase = "done";
  }

  describe(): unknown {
    const wrong = ({ truth, label }: Result) => truth !== null && truth !== label;
    const ordered = [...this.results].sort((a, b) => Number(wrong(b)) - Number(wrong(a)) || a.ranking[0][1] - b.ranking[0][1]);
    const counts = new Map<string, number>();
    for (const { label } of this.results) counts.set(label, (counts.get(label) ?? 0) + 1);
    return {
      phase: this.phase, message: this.message, folder: "", local: false,
      total: this.files.length, done: this.results.length + this.skipped.length,
      counts: [...counts].sort((a, b) => b[1] - a[1]),
      rows: ordered.slice(0, SHOWN).map(({ index, label, ranking, truth, stranger }) => ({
        index, name: this.files[index][0], label, best: ranking[0][0], probability: Math.min(ranking[0][1], 0.9999), truth, none: stranger,
      })),
      skipped: this.skipped.slice(0, 50), skipped_total: this.skipped.length, accuracy: this.accuracy(),
    };
  }

  private accuracy(): unknown {
    const judged = this.results.filter(({ truth }) => truth !== null), total = judged.length;
    if (!total) return null;
    const names = [...new Set(judged.flatMap(({ truth, label }) => [truth!, label]))].sort(compareNames);
    const matrix = confusion(judged.map(({ truth }) => names.indexOf(truth!)), judged.map(({ label }) => names.indexOf(label)), names.length);
    const correct = matrix.reduce((sum, row, k) => sum + row[k], 0), [low, high] = wilson(correct, total);
    return { correct, total, low, high, names, matrix };
  }

  picture(index: number): string {
    if (!this.addresses.has(index)) this.addresses.set(index, URL.createObjectURL(this.files[index][1]));
    return this.addresses.get(index)!;
  }

  async file(kind: string): Promise<[string, Blob]> {
    if (!this.results.length) throw new InputError("there are no answers yet");
    if (kind === "table") return ["answers.csv", table(this.results.map((result) => ({ ...result, name: this.files[result.index][0] })))];
    const taken = new Set<string>(), sorted: [string, Blob][] = [];
    for (const { index, label } of this.results) {
      const [path, file] = this.files[index];
      sorted.push([freeName(folderName(label), path.split("/").at(-1)!, taken), file]);
    }
    return ["sorted.zip", await writeZip(sorted)];
  }
}

// The class of an image in a folder that is named like one; of several around it the nearest counts.
function truthOf(path: string, known: Map<string, string>): string | null {
  const folders = path.split("/").slice(0, -1).reverse();
  for (const folder of folders) {
    const found = known.get(folder) ?? known.get(fold(folder));
    if (found !== undefined) return found;
  }
  return null;
}

export const folderName = (label: string) => {
  const name = [...label.replace(/[<>:"/\\|?*\x00-\x1f]|[. ]+$|^\.+/g, "_")].slice(0, 120).join("") || "_";
  return /^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$/i.test(name) ? `_${name}` : name;
};

// A path in an archive that none before it has.
export function freeName(folder: string, name: string, taken: Set<string>): string {
  const [, stem, ending] = name.replace(/[\\/:*?"<>|\x00-\x1f]/g, "_").match(/^(.*?)(\.[^.]*)?$/s)!;
  let path = `${folder}/${stem}${ending ?? ""}`;
  for (let i = 2; taken.has(fold(path)); i++) path = `${folder}/${stem} (${i})${ending ?? ""}`;
  taken.add(fold(path));
  return path;
}

// As `cnaps predict --out` writes it.
export function table(results: (Found & { name: string; truth?: string | null })[]): Blob {
  const quoted = (value: string) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const cell = (value: string) => quoted(/^[=+\-@\t\r]/.test(value) && !/^[+-]?[\d.]+$/.test(value) ? `'${value}` : value);
  const places = Math.max(...results.map(({ ranking }) => ranking.length)), truth = results.some((result) => result.truth);
  const heading = ["path", "label", "probability"];
  for (let i = 2; i <= places; i++) heading.push(`label_${i}`, `probability_${i}`);
  const rows = results.map((result) => {
    const answers: [string, number | null][] = result.stranger ? [[NONE, null] as [string, null], ...result.ranking].slice(0, result.ranking.length) : result.ranking;
    const cells = answers.flatMap(([label, p]) => [label, p === null ? "" : p.toFixed(6)]);
    return [result.name, ...cells, ...Array<string>(2 * places - cells.length).fill(""), result.novelty.toFixed(6), ...(truth ? [result.truth ?? ""] : [])];
  });
  const lines = [[...heading, "novelty", ...(truth ? ["true_label"] : [])], ...rows].map((row) => row.map(cell).join(","));
  return new Blob([lines.join("\n"), "\n"], { type: "text/csv" });
}
