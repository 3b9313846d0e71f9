import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { type Plugin, defineConfig } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const STATIC = here("../src/cnaps/static/");
// nothing from elsewhere, no inline scripts; onnxruntime compiles WebAssembly
const POLICY = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; img-src 'self' blob: data:; "
  + "media-src 'self' blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'";

// The studio's page and modules, with the transport of this page in place of the server's.
function studio(): Plugin {
  return {
    name: "studio",
    enforce: "pre",
    resolveId: (source, importer) => (importer?.startsWith(STATIC) && source === "./transport.js" ? here("src/transport.ts") : null),
    transformIndexHtml: {
      order: "pre",
      handler(html, { filename }) {
        const page = filename.endsWith("index.html") ? studioPage() : html;
        return page.replace('<meta charset="utf-8">', `<meta charset="utf-8">\n  <meta http-equiv="Content-Security-Policy" content="${POLICY}">`);
      },
    },
  };
}

function studioPage(): string {
  const changes: [string | RegExp, string][] = [
    ['<script type="module" src="/static/main.js"></script>', '<link rel="manifest" href="/app.webmanifest">\n  <script type="module" src="/src/main.ts"></script>'],
    [/\/static\//g, "../src/cnaps/static/"],
    ["<title>cnaps studio</title>", '<title>cnaps in the browser</title>\n  <meta name="generator" content="cnaps">\n  <meta name="description" content="Teach a classifier of images in this page, from a few examples each. Nothing is sent anywhere.">'],
    [/<a href="\/docs" data-server>.*<\/a>/, '<hr><button id="new-project"><b>New project</b><span>This one stays in the browser.</span></button>\n          <div id="others"></div>'],
    ["The studio’s server does not answer. Nothing is lost: start it again and this page goes on.", "This page does not answer any more: load it again."],
    ["The studio says which ones", "The page says which ones"],
    ["cnaps studio</h1>", "cnaps in the browser</h1>"],
  ];
  return changes.reduce((page, [from, to]) => {
    if (!(typeof from === "string" ? page.includes(from) : page.search(from) >= 0)) throw new Error(`the studio's page has no ${from} any more`);
    return page.replace(from, to);
  }, readFileSync(`${STATIC}index.html`, "utf8"));
}

// `FILE?packed`: the address of the file, compressed by gzip; the runtimes would be twice as large as everything else.
function packed(): Plugin {
  return {
    name: "packed",
    enforce: "pre",
    async resolveId(source, importer) {
      if (!source.endsWith("?packed")) return null;
      const found = await this.resolve(source.slice(0, -"?packed".length), importer, { skipSelf: true });
      return found && `${found.id}?packed`;
    },
    load(id) {
      if (!id.endsWith("?packed")) return null;
      const path = id.slice(0, -"?packed".length);
      const file = this.emitFile({ type: "asset", name: `${basename(path)}.gz`, source: gzipSync(readFileSync(path), { level: 9 }) });
      return `export default import.meta.ROLLUP_FILE_URL_${file};`;
    },
  };
}

// Lists for the service worker and for a page of one's own.
function lists(): Plugin {
  return {
    name: "lists",
    enforce: "post",
    generateBundle(_, bundle) {
      const sum = createHash("sha256").update(readFileSync(here("public/model.safetensors")));
      for (const name of Object.keys(bundle).sort()) {
        const part = bundle[name];
        sum.update(name).update(part.type === "asset" ? part.source : part.code);
      }
      const large = (name: string) => /\.gz$/.test(name);
      const files = ["./", ...Object.keys(bundle).filter((name) => !large(name) && name !== "sw.js"), "page.json", "app.webmanifest", "licences.txt"];
      const worker = bundle["sw.js"];
      if (worker?.type !== "chunk") throw new Error("there is no sw.js");
      worker.code = worker.code.replace("__VERSION__", sum.digest("hex").slice(0, 16)).replace("__FILES__", JSON.stringify(files));
      const needed = new Set(Object.keys(bundle).filter((name) => /(ort-wasm-simd-threaded[-.](?!asyncify)|page\.worker|mark-|style-)/.test(name)));
      const reach = (name: string) => {
        const part = bundle[name];
        if (part?.type !== "chunk") return;
        needed.add(name);
        for (const style of part.viteMetadata?.importedCss ?? []) needed.add(style);
        part.imports.filter((other) => !needed.has(other)).forEach(reach);
      };
      reach(Object.keys(bundle).find((name) => /^assets\/page-.*\.js$/.test(name))!);
      const own = { "index.html": "page.html", ...Object.fromEntries([...needed].map((name) => [name, name])) };
      this.emitFile({ type: "asset", fileName: "page.json", source: JSON.stringify(own) });
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [studio(), packed(), lists()],
  resolve: { conditions: ["onnxruntime-web-use-extern-wasm", "module", "browser", "development|production"] },
  worker: { format: "es", plugins: () => [packed()] },
  server: { fs: { allow: [".."] } },
  build: {
    target: "es2022",
    outDir: "../dist/web",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: {
      input: { index: here("index.html"), page: here("page.html"), sw: here("src/sw.ts") },
      output: { entryFileNames: ({ name }) => (name === "sw" ? "sw.js" : "assets/[name]-[hash].js") },
    },
  },
});
