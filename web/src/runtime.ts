// onnxruntime-web, from files beside the page: by WebAssembly, or on the GPU where there is one.

import * as ort from "onnxruntime-web/wasm";
import moduleUrl from "onnxruntime-web/ort-wasm-simd-threaded.mjs?url";
import binaryUrl from "onnxruntime-web/ort-wasm-simd-threaded.wasm?packed";

// threads of one session must not wait busily while another works
export const SETTINGS = { logSeverityLevel: 3, extra: { session: { intra_op: { allow_spinning: "0" } } } } as const;

// `maps` are outputs that only another session reads
export interface Runtime { ort: typeof ort; open: (model: Uint8Array, maps?: string[]) => Promise<ort.InferenceSession> }

export async function startRuntime(): Promise<Runtime> {
  await start(ort, moduleUrl, binaryUrl);
  return { ort, open: (model) => ort.InferenceSession.create(model, { executionProviders: ["wasm"], ...SETTINGS }) };
}

export async function start({ env }: typeof ort, module: string, binary: string): Promise<void> {
  const { wasm } = env;
  wasm.wasmPaths = { mjs: new URL(module, import.meta.url).href };
  wasm.wasmBinary = await unpacked(new URL(binary, import.meta.url));
  wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1;
  env.logLevel = "error";
}

// Some servers unpack such a file on its way, and then there is nothing to do.
async function unpacked(address: URL): Promise<ArrayBuffer> {
  const response = await fetch(address);
  if (!response.ok) throw new Error(`${address.pathname} cannot be fetched: look at the connection and load the page again`);
  const file = await response.blob(), start = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  return start.join() === "31,139" ? new Response(file.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer() : file.arrayBuffer();
}
