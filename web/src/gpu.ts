// The runtime on a GPU, a larger file that is fetched only where there is one.

import * as gpu from "onnxruntime-web/webgpu";
import moduleUrl from "onnxruntime-web/ort-wasm-simd-threaded.asyncify.mjs?url";
import binaryUrl from "onnxruntime-web/ort-wasm-simd-threaded.asyncify.wasm?packed";
import { type Runtime, SETTINGS, start } from "./runtime";

export async function startOnGpu(): Promise<Runtime> {
  const ort = gpu as unknown as Runtime["ort"];
  await start(ort, moduleUrl, binaryUrl);
  const open: Runtime["open"] = (model, maps = []) => {
    const preferredOutputLocation = Object.fromEntries(maps.map((name) => [name, "gpu-buffer" as const])); // they stay there
    return ort.InferenceSession.create(model, { executionProviders: ["webgpu", "wasm"], preferredOutputLocation, ...SETTINGS });
  };
  return { ort, open };
}
