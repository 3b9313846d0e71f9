"""A studio as a process of its own, real pictures, and a browser that looks at it."""

from __future__ import annotations

from ..servers import browser, pictures, screenshots, studio, task

__all__ = ["browser", "pictures", "screenshots", "studio", "task"]
