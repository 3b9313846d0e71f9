"""Meta-training of phi (algorithm 1 of the paper), optionally with theta."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cnaps.data.collection import Collection, class_fingerprint
from cnaps.episodes import Sampler, Task, TaskDescription, TaskLoader
from cnaps.nn.adapted import Adapted
from cnaps.nn.saving import save_model
from cnaps.training.augment import augment_task
from cnaps.training.config import TrainConfig, check
from cnaps.training.distillation import Teacher
from cnaps.training.distributed import World
from cnaps.training.engine import Job, NonFiniteError, Stopping
from cnaps.training.tasks import TaskStream, open_collections, task_generator, task_size, validation_sampler

if TYPE_CHECKING:
    from cnaps.nn.task_model import TaskModel


NOTHING_TO_TRAIN = "this model has nothing to train: no adaptation, and a head without parameters"


class EpisodicJob(Job):
    """Trains phi by tasks: adapt to the context, likelihood of the targets, gradients summed over a step."""

    prefix = "model."

    def __init__(self, model: TaskModel, config: TrainConfig, world: World) -> None:
        self.model = model.to(world.device)
        joint = config.theta.mode != "frozen"
        # A frozen theta asks for no gradient of its own: autograd then does no work for it.
        model.backbone.requires_grad_(joint)
        every = model.parameters() if joint else model.phi_parameters()
        parameters = [p for p in every if p.requires_grad]
        check(bool(parameters), NOTHING_TO_TRAIN)
        o = config.optimiser
        adam = torch.optim.AdamW if o.weight_decay else torch.optim.Adam
        groups: list[dict[str, Any]] = [{"params": parameters}]
        if joint and config.theta.learning_rate is not None:
            theta = set(model.backbone.parameters())
            share = config.theta.learning_rate / o.learning_rate
            groups = [
                {"params": [p for p in parameters if p not in theta]},
                {"params": [p for p in parameters if p in theta], "share": share},
            ]
        optimiser = adam(groups, o.learning_rate, (o.beta1, o.beta2), o.epsilon, o.weight_decay)
        super().__init__(config, world, model, parameters, optimiser)
        self._average = [p.detach().clone() for p in parameters] if o.ema else []
        self.rule = config.validation.rule
        self.steps = config.tasks.steps
        self.validate_every = max(1, config.validation.every // config.tasks.per_step)
        self.size = config.data.image_size or model.image_size
        self._teacher: Teacher | None = None
        if config.distillation.weight:
            check(model.kind == "cnaps", f"distillation is for the learner cnaps, not for {model.kind}")
            self._teacher = Teacher(model.backbone, config.distillation)
        self._train = open_collections(config.data.train, "train")
        self._valid = open_collections(config.data.valid, "valid")
        self._stream = TaskStream(self._train, config.tasks, config.seed)
        self._validation = [validation_sampler(c, split, config) for c, split in self._valid]
        self._collections = {c.name: c for c, _ in self._train}
        self.fingerprints = {c.name: c.fingerprint for c, _ in (*self._train, *self._valid)}

    def step(self, step: int, stopping: Stopping) -> dict[str, Any] | None:
        """One optimiser step over the next tasks, shared out over the ranks."""
        indices = self._indices(step)
        if self._loader is None:
            self._loader = self._load_from(step)
        self._set_mode(step)
        buffers = [b.clone() for b in self._theta_buffers()]
        self._clear_gradients()
        losses, accuracies, stop = torch.zeros(len(indices)), torch.zeros(len(indices)), torch.zeros(1)
        for index in self.world.share(indices):
            if stopping():
                stop[0] = 1
                break
            task = next(self._loader)
            losses[index - indices.start], accuracies[index - indices.start] = self._learn(task, len(indices))
        # Every rank fills in its own tasks: the sum is exact, the decisions below are the same everywhere.
        shared = self.world.sum(torch.cat([losses, accuracies, stop]).to(self.world.device)).cpu()
        losses, accuracies, stop = shared.split([len(indices), len(indices), 1])
        if stop.item() > 0:  # the step is dropped, and done again after a resume
            self._undo(buffers)
            self.close()
            return None
        if not torch.isfinite(losses).all():
            self._undo(buffers)
            position = int(torch.nonzero(~torch.isfinite(losses))[0])
            raise NonFiniteError(self._blame(indices[position], float(losses[position])))
        self.world.sum_gradients(self._parameters)
        o = self.config.optimiser
        norm = float(nn.utils.clip_grad_norm_(self._parameters, o.clip or math.inf))
        if not math.isfinite(norm):
            raise NonFiniteError(
                f"the gradient of tasks {indices.start} to {indices.stop - 1} is not finite; "
                "a smaller optimiser.learning_rate or optimiser.clip may help. The state before it is saved."
            )
        rate = o.learning_rate * o.schedule.factor(step, self.steps)
        self._update(rate)
        if o.ema:
            decay = min(o.ema, (1 + step) / (10 + step))  # a young average should not remember the start
            for average, p in zip(self._average, self._parameters, strict=True):
                average.lerp_(p.detach(), 1 - decay)
        self.world.average_(b for b in self._theta_buffers() if b.is_floating_point())
        means = {"loss": losses.mean().item(), "accuracy": accuracies.mean().item()}
        known = {"tasks": indices.stop, "count": len(indices)}
        return {**known, **means, "learning_rate": rate, "gradient_norm": norm}

    def _learn(self, task: Task, count: int) -> tuple[float, float]:
        """Add the gradient of one task of ``count``; gives its loss (without the penalty) and accuracy."""
        device, memory, options = self.world.device, self.config.memory, self.config.loss
        generator = task_generator(self.config.seed, task.index)
        context, targets = task.context_images.to(device), task.target_images.to(device)
        context, targets, whole = augment_task(context, targets, self.config.augmentation, generator)
        labels = task.target_labels.to(device)
        torch.manual_seed(generator.initial_seed())  # for whatever a backbone of one's own may draw
        with self.world.autocast():
            adapted = self.model.adapt(
                self.model.preprocess(context),
                task.context_labels.to(device),
                learn=True,
                chunk_size=memory.chunk_size,
                lite=memory.lite,
                generator=generator,
                checkpoint=memory.checkpoint,
            )
            inputs = self.model.preprocess(targets)
            if memory.checkpoint:
                parts = inputs.split(memory.chunk_size or 64)
                features = torch.cat([checkpoint(adapted.features, part, use_reentrant=False) for part in parts])
            else:
                features = adapted.features(inputs)
            logits = adapted.classify(features)
            loss = F.cross_entropy(logits.float() / options.temperature, labels, reduction=options.reduction)
            names = [f"{task.collection}/{name}" for name in task.class_names]
            further = self.model.auxiliary_loss(adapted, names)
            if further is not None:
                loss = loss + further
            total = loss / count
            if self._teacher is not None and whole and self._teacher.teaches(task.collection):
                assert isinstance(adapted, Adapted)
                total = total + self._teacher.loss(task, adapted, features) / count
        if options.penalty:
            # The reference adds the penalty once a task, undivided; with the paper's means it is a mean too.
            share = 1.0 if options.reduction == "sum" else 1 / count
            total = total + options.penalty * share * self.model.regularization()
        check(total.requires_grad, NOTHING_TO_TRAIN)
        value = float(loss.detach())
        if math.isfinite(value):
            total.backward()
        return value, (logits.argmax(1) == labels).float().mean().item()

    def validate(self, stopping: Stopping) -> dict[str, float] | None:
        """The mean accuracy on the fixed tasks of each validation set, shared out over the ranks."""
        if not self._validation:
            return {}
        count = self.config.validation.tasks_per_set
        accuracies, stop = torch.zeros(len(self._validation), count), torch.zeros(1)
        buffers = [b.clone() for b in self._theta_buffers()]
        # A model that normalises by the batch at hand does so when it is tested, too.
        self.model.train(self.model.config.backbone_norm == "batch")
        with self.averaged(), torch.no_grad():
            for row, ((collection, _), sampler) in enumerate(zip(self._valid, self._validation, strict=True)):
                for task in self._load(sampler, {collection.name: collection}, self.world.share(range(count))):
                    accuracies[row, task.index] = self._score(task)
                    if stopping():
                        stop[0] = 1
                        break
        self._undo(buffers)
        shared = self.world.sum(torch.cat([accuracies.view(-1), stop]).to(self.world.device)).cpu()
        if shared[-1] > 0:
            return None
        means = shared[:-1].view(-1, count).double().mean(1)
        return {c.name: float(m) for (c, _), m in zip(self._valid, means, strict=True)}

    def _score(self, task: Task) -> float:
        device, chunk_size = self.world.device, self.config.memory.chunk_size
        with self.world.autocast():
            context = self.model.preprocess(task.context_images.to(device))
            adapted = self.model.adapt(context, task.context_labels.to(device), chunk_size=chunk_size)
            logits = adapted.logits(self.model.preprocess(task.target_images.to(device)))
        return (logits.argmax(1).cpu() == task.target_labels).float().mean().item()

    def tensors(self) -> dict[str, Tensor]:
        """Weights, optimiser state and averages."""
        return super().tensors() | {f"average.{i}": average for i, average in enumerate(self._average)}

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        """Put them back in place."""
        self._set_mode(step - 1)
        super().restore(tensors, step)
        for i, average in enumerate(self._average):
            average.copy_(tensors[f"average.{i}"])

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the moving average of the weights for a while, if there is one."""
        current = [p.detach().clone() for p in self._parameters] if self._average else []
        with torch.no_grad():
            for p, average in zip(self._parameters, self._average, strict=False):
                p.copy_(average)
            try:
                yield
            finally:
                for p, own in zip(self._parameters, current, strict=False):
                    p.copy_(own)

    def save_model(self, folder: Path) -> None:
        """Write the (averaged) model as an ordinary model folder."""
        sources = dict(self.model.notes.get("trained_on", {}))  # of the model that training began with
        for each, split in self._train:
            classes = class_fingerprint(each.classes_of(split))
            known = {"split": split or "all", "classes": classes, "source": each.source, "licence": each.licence}
            if sources.get(each.name, known).get("classes") != classes:
                del known["classes"]  # two splits of one data set: which classes those were is not told apart
            sources[each.name] = known
        notes: dict[str, Any] = {"trained_on": sources}
        if self.config.loss.temperature != 1:  # what its logits were divided by is part of what was learned
            notes["calibration"] = [math.log(self.config.loss.temperature), 0.0, 0.0]
        with self.averaged():
            save_model(self.model, folder, notes=notes)

    def _indices(self, step: int) -> range:
        tasks = self.config.tasks
        return range(step * tasks.per_step, min((step + 1) * tasks.per_step, tasks.total))

    def _load_from(self, step: int) -> Iterator[Task]:
        own = (index for s in range(step, self.steps) for index in self.world.share(self._indices(s)))
        size = partial(task_size, self.config.data.sizes, self.size, self.config.seed)
        return self._load(self._stream, self._collections, own, size)

    def _load(
        self,
        tasks: Sampler | TaskStream,
        collections: dict[str, Collection],
        indices: Iterable[int],
        size: Callable[[TaskDescription], int] | None = None,
    ) -> Iterator[Task]:
        data = self.config.data
        return iter(TaskLoader(tasks, collections, size or self.size, indices, data.workers, data.prefetch))

    def _set_mode(self, step: int) -> None:
        """Whether theta's norms use the batch at hand (joint training) or running statistics."""
        theta = self.config.theta
        warm = theta.mode == "warm-start" and step * self.config.tasks.per_step < theta.warm_start_tasks
        norm = "batch" if theta.mode == "joint" or warm else "running"
        if theta.mode != "frozen" and norm != self.model.config.backbone_norm:
            self.model.config = replace(self.model.config, backbone_norm=norm)
        self.model.train()

    def _theta_buffers(self) -> list[Tensor]:
        """The running statistics of theta, if training changes them."""
        return [] if self.config.theta.mode == "frozen" else list(self.model.backbone.buffers())

    def _undo(self, copies: list[Tensor]) -> None:
        """Take back what a step or validation that does not count did to the running statistics."""
        for buffer, copy in zip(self._theta_buffers(), copies, strict=True):
            buffer.copy_(copy)

    def _blame(self, index: int, loss: float) -> str:
        d = self._stream[index]
        return (
            f"the loss of task {index} is {loss} ({d.collection}, {d.ways} ways, {d.context_size} context "
            f"and {d.target_size} target images). The state before this step is saved; a smaller "
            "optimiser.learning_rate or optimiser.clip may help"
        )
