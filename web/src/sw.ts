// Keeps the page: small files at once, the model and the runtime when they are first asked for. Every answer gets the
// headers that let the page use threads, which a plain web space cannot send.

const worker = self as unknown as ServiceWorkerGlobalScope;
const VERSION = "__VERSION__"; // of all files, put in by the build
const FILES: string[] = JSON.parse('__FILES__');

worker.addEventListener("install", (event) => {
  event.waitUntil(caches.open(VERSION).then((cache) => cache.addAll(FILES)).then(() => worker.skipWaiting()));
});
worker.addEventListener("activate", (event) => {
  const old = caches.keys().then((names) => Promise.all(names.filter((name) => name !== VERSION).map((name) => caches.delete(name))));
  event.waitUntil(old.then(() => worker.clients.claim()));
});
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && new URL(request.url).origin === location.origin) event.respondWith(answer(request));
});

async function answer(request: Request): Promise<Response> {
  const cache = await caches.open(VERSION), path = request.mode === "navigate" ? request.url.split(/[?#]/)[0] : request;
  let found = await cache.match(path);
  if (!found) {
    found = await fetch(request);
    if (found.status === 200) await cache.put(path, found.clone()).catch(() => {}); // no room: it works all the same
  }
  const headers = new Headers(found.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  return new Response(found.body, { status: found.status, statusText: found.statusText, headers });
}
