"""The methods of docs/results/methods.md, trained alike and tested on the same tasks, in sessions of any length.

    python tools/comparison.py grid [ROW ...]    the rate of each row, from one grid on validation domains
    python tools/comparison.py run [ROW ...]     train, test, and keep the scores in results/comparison.json
    python tools/comparison.py train ROW         the folder of a model with the first seed, for other experiments;
                                                 of several with --named: ROW=FOLDER,ROW=FOLDER
    python tools/comparison.py status            what is kept, and what is left

A row is trained with each of SEEDS for each block of features (all stages, the last one). The first seed is tested
on TASKS of each data set, further ones on SPREAD_TASKS: those tell how far trainings lie apart.
results/comparison.json holds an accuracy a row, block, seed, data set and task, and results/grid.json the rates:
what is there is not done again, on whichever machine it was done, so a later session adds seeds, rows or tasks.
All of them must be of the same training budget, data and tasks; others are refused. Models lie in runs/comparison
and may be removed.

A process takes one core; several may work on different rows at once. Images are decoded once, and features that no
task changes are computed once.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from results import ROOT, take_in

from cnaps.data.collection import Collection, remember_pixels
from cnaps.episodes import Limits
from cnaps.files import write_json, write_text
from cnaps.nn.checkpoints import load_task_model
from cnaps.nn.task_model import TaskModel
from cnaps.paper.experiments.evaluation import Evaluation, TaskSet
from cnaps.paper.experiments.reporting import provenance
from cnaps.paper.experiments.scores import Column, ScoreBook, Scores
from cnaps.paper.learners import FrozenFeatures, Learner, create_learner, find_learner
from cnaps.paper.learners.fixed import FixedLearner, fixed
from cnaps.training.config import TrainConfig
from cnaps.training.distributed import World
from cnaps.training.engine import fit
from cnaps.training.fixed import make_job
from cnaps.training.settings import apply_changes, build, read_settings
from cnaps.training.start import build_model
from cnaps.training.tasks import open_collections

CONFIG = Path("configs/comparison.toml")
SEEN = ["ilsvrc_2012", "tiny_imagenet", "omniglot", "cu_birds", "vgg_flower", "quickdraw"]  # but not these classes
UNSEEN = ["mnist", "cifar10", "traffic_sign", "dtd"]
TESTED = [*SEEN, *UNSEEN]
PUBLISHED = ("ilsvrc_2012", "tiny_imagenet")  # with ImageNet's published split, the first with its hierarchy
LIMITS = Limits(min_ways=5, max_ways=10, max_context=50, max_targets_per_class=5)
RATES = ("3e-4", "1e-3", "3e-3")
LOWER = "1e-4"  # tried too where the lowest of these is the best
VALID = ("aerial-scenes", "leaves", "plate-characters", "sports")
VALID_TASKS = 5
GRID_SEEDS = (0, 1)  # trainings of each rate: with one, a rate that now and then diverges looks good by luck


@dataclass(frozen=True)
class Row:
    """A line of the table: a method, how its training differs from configs/comparison.toml, and its blocks."""

    learner: str
    changes: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ("all", "last")
    rate: str = ""  # of which row; of this one, if not said
    head: str = ""  # the row whose head it begins with, and keeps

    @property
    def trained(self) -> bool:
        """Whether there is anything to train."""
        return find_learner(self.learner).trained


LORA = "model.lora_rank=8"
TAUGHT = ('distillation.collections=["ilsvrc_2012", "tiny_imagenet", "caltech101"]', "distillation.weight=1.0")
JOINT = ("theta.learning_rate=1e-4",)
PAPER_HEAD = ("model.head=linear", "model.spread=false")
# On features that nothing changes a task takes milliseconds.
LONG = ("memory.features=true", "tasks.total=10000", "tasks.per_step=8", *(
    f"augmentation.{each}=0" for each in ("flip", "invert", "recolour", "greyscale", "zoom")
))  # fmt: skip
ROWS = {
    "logreg": Row("logreg"),
    "protonet": Row("protonet"),
    "matchingnet": Row("matchingnet"),
    "cnaps": Row("cnaps"),
    "cnaps-no-ar": Row("cnaps-no-ar"),
    "cnaps-no-film": Row("cnaps-no-film"),
    "cnaps-linear": Row("cnaps-linear", blocks=("last",)),
    "simple-cnaps": Row("simple-cnaps", ("loss.temperature=50",)),
    "protonet-trained": Row("protonet-trained", (LORA,)),
    "matchingnet-trained": Row("matchingnet-trained", (LORA,)),
    "versa": Row("versa"),
    "tadam-style": Row("tadam-style"),
    # Each step from the paper's model to the default one. So few tasks cannot train its head (cnaps-linear), which
    # begins with random weights. With 10,000 it learns, without FiLM, but is far too sure of what it has not seen:
    # FiLM that learns for it at a temperature of 1 finds that being sure of nothing costs least. At 50 it learns.
    # Cosine similarity to class means, with a learned scale, needs no more tasks than those.
    "cnaps-linear-no-film": Row("cnaps-no-film", (*PAPER_HEAD, *LONG), ("last",)),
    "cnaps-linear-long": Row(
        "cnaps-linear", ("init.regulariser=0.001", "loss.temperature=50"), ("last",), head="cnaps-linear-no-film"
    ),
    "cnaps-cosine": Row("cnaps", ("model.head=cosine", "model.spread=false"), ("last",)),
    "cnaps-ridge": Row("cnaps", ("model.spread=false",), ("last",)),
    "cnaps-lora": Row("cnaps", (LORA,), ("all",), "cnaps"),
    "cnaps-taught": Row("cnaps", (LORA, *TAUGHT), ("all",), "cnaps"),
    # theta trained too; the second with batch statistics for the first half of its tasks only
    "cnaps-joint": Row("cnaps", ("theta.mode=joint", *JOINT), ("all",), "cnaps"),
    "cnaps-warm-start": Row(
        "cnaps", ("theta.mode=warm-start", "theta.warm_start_tasks=60", *JOINT), ("all",), "cnaps"
    ),
    "residual-adapters-trained": Row("residual-adapters-trained", blocks=("all",)),
    "fomaml": Row("fomaml", blocks=("last",)),  # a linear layer on the last features, as published
    "proto-maml": Row("proto-maml"),
    "proto-maml-fixed-norms": Row("proto-maml-fixed-norms"),
    "film-gradient-tuned": Row("film-gradient-tuned"),
    "finetune-tuned": Row("finetune-tuned"),
    "finetune-long": Row("finetune-long"),
    "residual-adapters": Row("residual-adapters"),
    "finetune": Row("finetune"),
}


def settings(name: str, block: str, seed: int, rate: str, valid: Sequence[str] = ()) -> TrainConfig:
    """How one model is trained."""
    row = ROWS[name]
    theta = [f'theta.{key}="{value}"' for key, value in find_learner(row.learner).theta.items()]
    own = [f'learner="{row.learner}"', f'model.features="{block}"', f"seed={seed}", *theta, *row.changes]
    own += [f"optimiser.learning_rate={rate}", f"validation.tasks_per_set={VALID_TASKS}"]
    own += ["validation.max_ways=10", "validation.max_context=50"]
    if row.head:
        taught = model_folder(row.head, block, seed, rate_of(row.head, block))
        own += [f'init.head="{taught}"', 'init.freeze=["head"]']
    table = apply_changes(read_settings(CONFIG), own)
    table["data"]["valid"] = [f"collections/{each}" for each in valid]
    return build(TrainConfig, table)


def rates() -> dict[str, Any]:
    """What the grid has found so far, by row."""
    path = ROOT / "results" / "grid.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))["methods"]) if path.exists() else {}


def grid_key(name: str, block: str) -> str:
    """How the grid names a row with these features: those of its first block go without saying."""
    return name if block == ROWS[name].blocks[0] else f"{name}@{block}"


def rate_of(name: str, block: str) -> str:
    """The best rate of a row with these features, or of the row whose rate it shares."""
    key = grid_key(ROWS[name].rate or name, block)
    found = rates()
    if key not in found:
        raise SystemExit(f"no rate is known for {key}: run `python tools/comparison.py grid {name}` first")
    return str(found[key]["best"])


def model_folder(name: str, block: str, seed: int, rate: str) -> Path:
    """Where a model lies."""
    return Path("runs/comparison", f"{name}@{block}", f"{seed}-{rate}")


def trained(
    name: str, block: str, seed: int, rate: str, valid: Sequence[str] = ()
) -> tuple[Path, dict[str, float]]:
    """The folder of a model, which is trained unless it is there, and its accuracies on validation domains."""
    folder = model_folder(name, block, seed, rate)
    known = folder / "validation.json"
    if folder.exists() and (not valid or known.exists()):
        return folder, json.loads(known.read_text(encoding="utf-8")) if valid else {}
    head = ROWS[name].head
    if head:
        trained(head, block, seed, rate_of(head, block))
    config = settings(name, block, seed, rate, valid)
    world = World(device="cpu")
    job = make_job(build_model(config), config, world)
    state, stopped = fit(job, None)
    job.close()
    world.close()
    if stopped:
        raise SystemExit(128 + stopped)
    job.save_model(folder)
    if valid:
        write_json(known, state.best)
    return folder, state.best


@contextmanager
def alone() -> Iterator[None]:
    """While one process changes what is kept, no other does."""
    path = ROOT / "runs" / "comparison" / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def grid(names: Iterable[str], blocks: Sequence[str], clock: Clock) -> None:
    """Try each rate for each row and block, with each of GRID_SEEDS; what was tried before is kept."""
    for name, block, rate in product(names, blocks, (*RATES, LOWER)):
        row, key = ROWS[name], grid_key(name, block)
        found = rates().get(key, {"rates": {}})
        due = rate not in found["rates"] and (rate != LOWER or found.get("best") == RATES[0])
        if not row.trained or row.rate or block not in row.blocks or not due or clock.over():
            continue
        began = time.process_time()
        try:
            seeds = [trained(name, block, seed, rate, VALID)[1] for seed in GRID_SEEDS]
        except torch.linalg.LinAlgError:  # weights have grown until covariances are none any more
            seeds = [dict.fromkeys(VALID, 0.0)]
        each = [round(sum(sets.values()) / len(sets), 4) for sets in seeds]
        sets = {key: round(sum(one[key] for one in seeds) / len(seeds), 4) for key in seeds[0]}
        with alone():
            found = rates()
            tried = found.setdefault(key, {"rates": {}})["rates"]
            tried[rate] = {"accuracy": round(sum(each) / len(each), 4), "seeds": each, "sets": sets}
            tried[rate] |= {"diverged": True} if len(each) < len(GRID_SEEDS) else {}
            found[key]["best"] = max(tried, key=lambda each: tried[each]["accuracy"])
            setup = {"training": read_settings(CONFIG), "domains": VALID, "tasks of each": VALID_TASKS}
            made = provenance() | {"command": "make grid"}
            data = {"methods": found, "setup": setup | {"seeds": GRID_SEEDS}, "made": made}
            write_json(ROOT / "results" / "grid.json", data)
        print(f"{key} {rate}: {each}, {time.process_time() - began:.0f} s", flush=True)


@dataclass(frozen=True)
class Amount:
    """Of what there is to do, how much."""

    blocks: Sequence[str]
    seeds: Sequence[int]
    tasks: int  # of each data set, for the first seed
    spread_tasks: int  # for further ones


def run(names: Sequence[str], amount: Amount, clock: Clock) -> None:
    """Train and test what is not kept yet, seed by seed so that there is a whole table early."""
    folders = [f"published/{each}" if each in PUBLISHED else each for each in TESTED]
    collections = [Collection.open(f"collections/{each}") for each in folders]
    task_set = TaskSet.draw(collections, "test", amount.tasks, limits=LIMITS, seed=0)
    base = build_model(settings("cnaps", "all", 0, RATES[0]))
    sets = open_collections(read_settings(CONFIG)["data"]["train"], "train")
    common = {
        "tasks": {**task_set.protocol, "image size": base.image_size},
        "data set": {each.name: each.fingerprint for each in collections},
        "trained on": {each.name: each.fingerprint for each, _ in sets},
        "training": read_settings(CONFIG),
    }
    frozen = FrozenFeatures(base.backbone, every_stage=True)
    for seed, name, block in product(amount.seeds, names, amount.blocks):
        row = ROWS[name]
        if block not in row.blocks:
            continue
        label = f"{name}@{block}" + (f"#{seed}" if row.trained else "")
        wanted = task_set if seed == amount.seeds[0] else first(task_set, amount.spread_tasks)
        left = without(wanted, kept_at(label, rate_of(name, block) if row.trained else None))
        if not any(left.tasks.values()) or clock.over():
            continue
        began = time.process_time()
        learner, own = made(name, block, seed, base)
        if forget(label, own["learner"]):
            print(f"{label}: the same training gives other weights here; its earlier scores are replaced")
            left = wanted
        between = time.process_time()
        setup = common | {part: {label: value} for part, value in own.items()}
        book = ScoreBook(Path("out/comparison", label, own["learner"].replace(" ", "-")))
        book.agree(setup, write=True)
        features = learner.frozen if isinstance(learner, FixedLearner) else frozen
        scores = Evaluation({label: learner}, features, book, base.image_size).run(left)
        keep(setup, scores)
        took = f"{between - began:.0f} s to train, {time.process_time() - between:.0f} s to test"
        print(f"{label}: {kept().accuracy(label, TESTED)}, {took}", flush=True)


def made(name: str, block: str, seed: int, base: TaskModel) -> tuple[Learner, dict[str, Any]]:
    """A row's method, trained if that is to be, and what says which one it is."""
    row = ROWS[name]
    if not row.trained:
        return create_learner(row.learner, base, block), {"learner": f"theta {base.backbone.digest()}"}
    rate = rate_of(name, block)
    model = load_task_model(trained(name, block, seed, rate)[0])
    how: dict[str, Any] = {"changes": list(row.changes), "rate": rate}
    how |= {"head of": row.head} if row.head else {}
    learner = create_learner(row.learner, model)
    return fixed(model, row.learner) or learner, {"learner": model.fingerprint(), "trained": how}


def first(task_set: TaskSet, count: int) -> TaskSet:
    """The first tasks of each data set."""
    return replace(task_set, tasks={name: some[:count] for name, some in task_set.tasks.items()})


def without(task_set: TaskSet, known: Mapping[str, Column]) -> TaskSet:
    """Those tasks whose scores are not known."""
    done = {name: set(column.index) for name, column in known.items()}
    tasks = {
        name: [each for each in some if each.index not in done.get(name, ())]
        for name, some in task_set.tasks.items()
    }
    return replace(task_set, tasks=tasks)


def keep(setup: dict[str, Any], scores: Scores) -> None:
    """Add scores to results/comparison.json; refused where they are of another setup."""
    about = {
        "name": "comparison",
        "title": "Methods around one backbone",
        "unseen": UNSEEN,
        "against": "cnaps@all",
    }
    found = scores.to_json()
    for column in (column for mine in found.values() for column in mine.values()):
        column["bins"] = []  # no method has a temperature: how sure they are is not compared
    how = {"made": provenance() | {"command": "make comparison"}}
    with alone():
        take_in({**about, "setup": setup, "scores": found, **how}, "comparison")


def forget(label: str, identity: str) -> bool:
    """Drop the scores of a model that is not this one; says whether there were any.

    Processors and versions round otherwise, and training enlarges that: scores of two models are never mixed.
    """
    path = ROOT / "results" / "comparison.json"
    with alone():
        data = _held()
        if data["setup"].get("learner", {}).get(label, identity) == identity:
            return False
        for part in (data["scores"], data["setup"]["learner"], data["setup"]["trained"]):
            part.pop(label, None)
        write_text(path, json.dumps(data, separators=(",", ":")) + "\n")
        return True


def kept() -> Scores:
    """Everything that is kept."""
    return Scores.from_json(_held()["scores"])


def kept_at(label: str, rate: str | None) -> Mapping[str, Column]:
    """What is kept of a label; nothing, if it was trained at another rate."""
    known = _held()["setup"].get("trained", {}).get(label, {}).get("rate")
    return kept().columns.get(label, {}) if known == rate else {}


def _held() -> dict[str, Any]:
    path = ROOT / "results" / "comparison.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {"setup": {}, "scores": {}}


class Clock:
    """Says when the time is over: nothing is begun after it."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes

    def over(self) -> bool:
        """Whether to begin nothing more."""
        return self._end is not None and time.monotonic() > self._end


def status() -> None:
    """A line a row: rates that were tried, models and tasks that are kept."""
    scores, tried = kept(), rates()
    for name, row in ROWS.items():
        parts = []
        for block in row.blocks:
            if row.trained and not row.rate:
                count = len(tried.get(grid_key(name, block), {}).get("rates", {}))
                parts.append(f"{count} of {len(RATES)} rates")
            labels = [label for label in scores.columns if label.partition("#")[0] == f"{name}@{block}"]
            counts = sorted({len(scores.tasks(label, TESTED[0])) for label in labels}, reverse=True)
            models = f"{len(labels)} seeds of " if row.trained else ""
            what = f"{models}{'/'.join(map(str, counts))} tasks" if labels else "to do"
            parts.append(f"@{block} {what}")
        print(f"{name:27}{', '.join(parts)}")


def main() -> None:
    """Read the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("grid", "run", "train", "status"))
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; all of them, if not given")
    parser.add_argument("--blocks", default="all,last")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--tasks", type=int, default=600, help="of each data set, for the first seed")
    parser.add_argument("--spread-tasks", type=int, default=40, help="of each data set, for further seeds")
    parser.add_argument("--named", action="store_true", help="print models as --learners takes them")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    o = parser.parse_intermixed_args()
    unknown = set(o.rows) - set(ROWS)
    if unknown:
        parser.error(f"no row is named {', '.join(sorted(unknown))}; there are: {', '.join(ROWS)}")
    remember_pixels()
    clock, rows = Clock(o.minutes), o.rows or list(ROWS)
    if o.command == "grid":
        grid(rows, o.blocks.split(","), clock)
    elif o.command == "run":
        seeds = [int(seed) for seed in o.seeds.split(",")]
        run(rows, Amount(o.blocks.split(","), seeds, o.tasks, min(o.tasks, o.spread_tasks)), clock)
    elif o.command == "train":
        seed, blocks = int(o.seeds.partition(",")[0]), {name: ROWS[name].blocks[0] for name in o.rows}
        models = {name: trained(name, block, seed, rate_of(name, block))[0] for name, block in blocks.items()}
        print(",".join(f"{name}={folder}" if o.named else str(folder) for name, folder in models.items()))
    else:
        status()


if __name__ == "__main__":
    main()
