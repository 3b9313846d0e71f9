// Projects in IndexedDB: a description, which is replaced whole, and the images by the hash of their content.

import { InputError } from "./errors";
import type { Look } from "./pixels";

export interface Class { id: string; name: string; learned: [number, number] | null } // row and examples in the task
export interface Image { id: string; name: string; place: string; right?: true } // its label was confirmed
export interface Project {
  id: string; name: string; classes: Class[]; images: Image[];
  task: Uint8Array | null; // an imported task file
  changed: number; // changes since it was last exported whole
}
export interface Stored { file: Blob; small: Blob; look: Look }

const FULL = "The browser's storage is full: export the project, then remove images or make room on the disk.";
let opened: Promise<IDBDatabase> | null = null;

function database(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("cnaps", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("projects", { keyPath: "id" });
      request.result.createObjectStore("images");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(new InputError("this browser keeps nothing for this page (a private window, perhaps): what you do here is lost when it closes"));
  });
  return opened;
}

async function act<T>(store: string, mode: IDBTransactionMode, run: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const db = await database();
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(store, mode), request = run(transaction.objectStore(store));
    const fail = () => {
      const error = transaction.error ?? request.error;
      reject(error?.name === "QuotaExceededError" ? new InputError(FULL) : new InputError(`the browser's storage failed: ${error?.message}`));
    };
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = fail;
  });
}

export const projects = () => act<Project[]>("projects", "readonly", (store) => store.getAll());
export const saveProject = (project: Project) => act("projects", "readwrite", (store) => store.put(project));
export const removeProject = (id: string) => act("projects", "readwrite", (store) => store.delete(id));
export const saveImage = (id: string, image: Stored) => act("images", "readwrite", (store) => store.put(image, id));
export const readImage = (id: string) => act<Stored | undefined>("images", "readonly", (store) => store.get(id));
const imageKeys = () => act("images", "readonly", (store) => store.getAllKeys());

// Images that no project refers to any more.
export async function tidy(): Promise<void> {
  const used = new Set((await projects()).flatMap(({ images }) => images.map(({ id }) => id)));
  for (const key of await imageKeys()) if (!used.has(String(key))) await act("images", "readwrite", (store) => store.delete(key));
}
