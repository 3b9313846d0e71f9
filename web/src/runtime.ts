// onnxruntime-web, from files beside the page.

import * as ort from "onnxruntime-web/wasm";
import runtimeUrl from "onnxruntime-web/ort-wasm-simd-threaded.mjs?url";
import binaryUrl from "onnxruntime-web/ort-wasm-simd-threaded.wasm?url";

export function startRuntime(threads: number): void {
  ort.env.wasm.wasmPaths = { mjs: new URL(runtimeUrl, import.meta.url).href, wasm: new URL(binaryUrl, import.meta.url).href };
  ort.env.wasm.numThreads = threads;
  ort.env.logLevel = "error";
}

export async function sessionOf(model: Uint8Array): Promise<ort.InferenceSession> {
  return ort.InferenceSession.create(model, { executionProviders: ["wasm"], logSeverityLevel: 3 });
}
