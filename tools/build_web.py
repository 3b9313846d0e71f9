"""Build the page that learns in the browser into dist/web: python tools/build_web.py

The default model becomes one file. Batch norms are folded into the convolutions here, so the page has nothing to
do but to add the share of LoRA terms that the size of images has, and FiLM. Convolutions stay in single precision:
in half of it FiLM would differ by 3e-3 from Python's. Nothing is built twice: a digest of everything that goes in
is kept beside the result.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from cnaps.runtime.bundle import Bundle
from cnaps.runtime.engine import OnnxEngine, open_engine
from cnaps.weights import DEFAULT_MODEL, INSTALLED

ROOT = Path(__file__).resolve().parents[1]
WEB, SITE = ROOT / "web", ROOT / "dist" / "web"
MOST = 40_000_000  # bytes of the whole site
_ABOUT = ("fingerprint", "image_size", "min_image_size", "size_step", "channels", "sites", "normalisation")


def web_model(engine: OnnxEngine) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and metadata of the file."""
    bundle = engine.bundle()
    names = ["stem", *bundle.stages, "set_encoder", *(f"film.{i}" for i, s in enumerate(bundle.sites) if s)]
    names = [name for name in names if name in bundle._graphs]
    nodes = b"".join(bundle.graph(name).nodes for name in names)
    tensors = {f"layers/{n}": v for n, v in bundle.frozen_layers.items() if n.encode() in nodes}
    tensors |= _lora(bundle)
    fixed = ("set_encoder.", "adaptation.", "head.")
    tensors |= {f"state/{n}": _half(v) for n, v in bundle._state.items() if n.startswith(fixed)}
    tensors["check/features"] = _check(engine)
    tensors |= {f"graphs/{n}": np.frombuffer(bundle._graphs[n], np.uint8) for n in names}
    about = {name: bundle.about[name] for name in _ABOUT} | {
        "name": engine.name,
        "settings": dict(bundle.settings),
        "calibration": bundle.notes.get("calibration", (0.0, 0.0, 0.0)),
        "set_encoder_size": bundle.about["set_encoder_size"],
        "image_sizes": bundle.notes.get("image_sizes") or [bundle.image_size],
    }
    return {k: np.ascontiguousarray(v) for k, v in tensors.items()}, {
        "format": "cnaps-web-model",
        "about": json.dumps(about),
    }


def _lora(bundle: Bundle) -> dict[str, np.ndarray]:
    """Of each convolution that has LoRA terms: outer (O, r), inner (r, I) and the factor of its norm (O,)."""
    found: dict[str, np.ndarray] = {}
    for conv, how in bundle.about["folded"].items():
        if "lora" in how:
            norm, theta = how["norm"], bundle._theta
            scale = theta[f"{norm}.weight"] / np.sqrt(theta[f"{norm}.running_var"] + np.float32(how["eps"]))
            parts = {part: _half(bundle._state[f"lora.{part}.{how['lora']}"]) for part in ("outer", "inner")}
            found |= {f"lora/{conv}/{part}": value for part, value in {**parts, "scale": scale}.items()}
    return found


def _check(engine: OnnxEngine) -> np.ndarray:
    """Features of a pattern of pixels without FiLM: by these the page knows whether a GPU computes right."""
    sites = [site for stage in engine.bundle().sites for site in stage]
    film = np.concatenate([np.repeat(np.array([1, 0], np.float32), site.channels) for site in sites])
    pattern = (np.arange(96 * 96 * 3) ** 2 % 251).astype(np.uint8).reshape(1, 96, 96, 3).transpose(0, 3, 1, 2)
    return engine.network(film, 96)(pattern)[0]


def _half(value: np.ndarray) -> np.ndarray:
    """In half precision where nothing is lost by it."""
    half = value.astype(np.float16)
    return half if (half.astype(np.float32) == value).all() else value


def write_model(target: Path) -> None:
    """The file that the page fetches."""
    engine = open_engine(DEFAULT_MODEL)
    assert isinstance(engine, OnnxEngine)
    tensors, metadata = web_model(engine)
    save_file(tensors, target, metadata)


def write_licences(target: Path) -> None:
    """What the page is made of, by the lock file and the packages themselves; what only builds it is not in it."""
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    used = {name: about for name, about in lock.items() if name and not about.get("dev")}
    title = {name: name.split("node_modules/")[-1] for name in used}
    lines = ["cnaps: MIT", "weights of EfficientNet-Lite0: Apache-2.0"]
    lines += [f"{title[name]} {about['version']}: {about['license']}" for name, about in used.items()]
    texts = [("cnaps", ROOT / "LICENSE")]
    texts += [(title[name], path) for name in used for path in (WEB / name).glob("LICEN[SC]E*")]
    parts = ["This page is made of\n\n" + "\n".join(lines)]
    parts += [f"== {name} ==\n\n{path.read_text(encoding='utf-8').strip()}" for name, path in texts]
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _digest() -> str:
    """Of everything that the site is made from."""
    inputs = [Path(__file__), *(path for path in WEB.glob("*") if path.is_file())]
    for folder in (WEB / "src", ROOT / "src" / "cnaps" / "static", INSTALLED / DEFAULT_MODEL):
        inputs += [path for path in folder.rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for path in sorted(inputs):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _run(command: list[str]) -> None:
    if subprocess.run(command, cwd=WEB, stdout=sys.stderr).returncode:
        sys.exit(f"the page was not built: {' '.join(command)} failed in {WEB}, as it says above")


def build() -> Path:
    """The site's folder, built anew where anything has changed."""
    stamp, digest = SITE.with_name("web.digest"), _digest()
    if stamp.is_file() and stamp.read_text() == digest and (SITE / "index.html").is_file():
        return SITE
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("the page is built by npm, which is not here: install Node.js")
    write_model(WEB / "public" / "model.safetensors")
    installed = WEB / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        _run([npm, "ci", "--ignore-scripts"])
    write_licences(WEB / "public" / "licences.txt")
    _run([npm, "run", "build", "--silent"])
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    if size > MOST:
        sys.exit(f"the site has {size / 1e6:.1f} MB, more than {MOST / 1e6:.0f}")
    stamp.write_text(digest)
    return SITE


if __name__ == "__main__":
    site = build()
    files = [path for path in site.rglob("*") if path.is_file()]
    large = (".gz", ".safetensors")
    small = sum(path.stat().st_size for path in files if path.suffix not in large)
    total = sum(path.stat().st_size for path in files)
    print(f"{site}: {total / 1e6:.1f} MB, {small / 1e3:.0f} KB before the model is asked for; try it: cnaps web")
