"""A server as a process of its own, and real pictures."""

from __future__ import annotations

from ..servers import pictures, task

__all__ = ["pictures", "task"]
