"""Tasks by Meta-Dataset's protocol: described, loaded, written down, drawn."""

from cnaps.episodes.loader import TaskLoader
from cnaps.episodes.manifest import read_manifest, write_manifest
from cnaps.episodes.sampler import TEST_LIMITS, TRAIN_LIMITS, Limits, Sampler
from cnaps.episodes.task import Task, TaskDescription, load_task

__all__ = [
    "TEST_LIMITS", "TRAIN_LIMITS", "Limits", "Sampler", "Task", "TaskDescription", "TaskLoader", "load_task",
    "read_manifest", "write_manifest",
]  # fmt: skip
