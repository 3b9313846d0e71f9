"""What the site needs beyond the pages: files of the project's root that pages link to."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

CONFIGS = tuple(f"configs/cnaps-lite0{part}.toml" for part in ("", "-taught", "-sizes"))
LINKED = ("ARCHITECTURE.md", "CHANGELOG.md", "LICENSE", *CONFIGS)


def on_files(files: Any, config: Any) -> Any:
    """Add them as if they lay among the pages."""
    root = Path(config.config_file_path).parent
    for name in LINKED:
        files.append(File.generated(config, name, abs_src_path=str(root / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to them have one step less to go."""
    return re.sub(r"\]\(\.\./(?=" + "|".join(map(re.escape, LINKED)) + r")", "](", markdown)
