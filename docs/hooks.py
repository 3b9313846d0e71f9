"""What the site needs beyond the pages: files of the project's root that pages link to."""

import base64
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

CONFIGS = tuple(f"configs/cnaps-lite0{part}.toml" for part in ("", "-taught", "-sizes"))
LINKED = ("ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", *CONFIGS)

# a worker of a page that was opened from a file: its script in a frame of the same page
_WORKER = (
    "data:text/javascript;base64,"
    + base64.b64encode(b"""
window.IFrameWorker = window.Worker = class extends EventTarget {
  constructor(source) {
    super();
    this.frame = document.body.appendChild(document.createElement("iframe"));
    this.frame.hidden = true;
    const inside = this.frame.contentWindow, script = inside.document.createElement("script");
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.ready = new Promise((done) => { script.onload = done; });
    script.src = source;
    inside.document.body.append(script);
  }
  postMessage(data) {
    const inside = this.frame.contentWindow;
    this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
  }
  terminate() { this.frame.remove(); }
};
""").decode()
)


def on_files(files: Any, config: Any) -> Any:
    """Add them as if they lay among the pages."""
    root = Path(config.config_file_path).parent
    for name in LINKED:
        files.append(File.generated(config, name, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to them have one step less to go."""
    return re.sub(r"\]\(\.\./(?=" + "|".join(map(re.escape, LINKED)) + r")", "](", markdown)


def on_post_page(output: str, **_: Any) -> str:
    """The theme fetches what stands in for a worker, which pages opened from files may not start: give it ours."""
    return re.sub(r"https://unpkg\.com/iframe-worker/shim", _WORKER, output)
