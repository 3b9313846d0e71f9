// The service worker: the page works offline after a visit, and its worker may use several threads.

const PATIENCE = 4000; // milliseconds

export async function isolate(): Promise<void> {
  if (!("serviceWorker" in navigator) || import.meta.env.DEV) return;
  try {
    await navigator.serviceWorker.register("sw.js");
    if (!navigator.serviceWorker.controller) {
      await Promise.race([
        new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true })),
        new Promise((resolve) => setTimeout(resolve, PATIENCE)),
      ]);
    }
  } catch {
    // a page that cannot be kept still works
  }
}
