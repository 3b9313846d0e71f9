"""The one place that decides about torch's threads and devices."""

from __future__ import annotations

from functools import cache

import torch

from cnaps.parallel import thread_count


@cache
def configure_threads() -> int:
    """Set torch's threads, once: CNAPS_THREADS, or every processor this process may use."""
    chosen = thread_count()
    torch.set_num_threads(chosen)
    return chosen


def pick_device(name: str = "auto") -> torch.device:
    """Turn ``auto`` into the best device there is; any other name is taken as it is.

    >>> pick_device("cpu").type
    'cpu'
    """
    configure_threads()
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
