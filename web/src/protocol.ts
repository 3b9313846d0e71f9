// What page and worker say to each other.

import type { Look } from "./pixels";

export interface Plan {
  version: number;
  classes: Record<string, string[]>; // images of each class by its name; those with images
  held: Record<string, string[]>; // held out of each: what is never learned from
  test: string[];
  pool: string[];
  task: Uint8Array | null; // of an imported task
  learned: Record<string, number>; // the row of each class in the task
  keys: Record<string, string>; // ids of classes by name
}
export interface Status { phase: "waiting" | "learning" | "refining" | "ready" | "error"; text: string; seconds: number | null }
export interface Prediction { top: [string, number][]; doubt: "" | "none" | "unsure" }
export interface Score {
  correct: number; total: number; low: number; high: number;
  confusion: [string, string, number][]; // class, answer, how often
  mistakes: { id: string; answer: string; probability: number }[];
}
export interface Review extends Score {
  enough: boolean;
  suspects: { id: string; better: string; fit: number; better_fit: number }[];
}
export interface Insight {
  predictions: Record<string, Prediction>;
  review: Review | null;
  held_out: Score | null; // how the images that are held out were answered
  suggestions: string[];
  points: Record<string, [number, number]>;
}
export type Call =
  | { kind: "look"; id: string; file: Blob }
  | { kind: "keep"; id: string; file: Blob; look: Look }
  | { kind: "follow"; plan: Plan }
  | { kind: "classify"; files: Blob[] }
  | { kind: "checkTask"; bytes: Uint8Array }
  | { kind: "task" }
  | { kind: "onnx" }
  | { kind: "ask"; ids: string[] };
export interface Found { ranking: [string, number][]; novelty: number; stranger: boolean } // the answer for an image, best first
export interface Answer { number: number; value?: unknown; error?: string }
export type News = Partial<{ status: Status; insight: Insight; settled: number }> | Answer;
