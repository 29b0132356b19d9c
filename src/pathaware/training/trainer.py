"""One meta-iteration: gather tasks, adapt, meta-gradient, sum over processes, clip, optimiser."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pathaware.core.episodes import TaskSource
from pathaware.core.errors import RunError
from pathaware.core.learner import FewShotLearner, MetaLearner
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.seeding import generator, seed_all
from pathaware.engine.compiled import CompiledUnrolled, has_compiler
from pathaware.engine.cuda_graph import CapturedStep
from pathaware.methods import get_method
from pathaware.training.config import Config, Training
from pathaware.training.distributed import ALONE, World
from pathaware.training.evaluation import evaluate
from pathaware.training.gradient_probe import GradientProbe, Histograms, probed_tensor
from pathaware.training.pretraining import start_pretrained
from pathaware.training.state import State


@dataclass(frozen=True)
class Outcome:
    """Losses of this process's tasks `[T]`, norm of the whole meta-gradient before clipping, and 1 if it was
    unusable."""

    losses: Tensor
    norm: Tensor
    skipped: Tensor


class MetaStep:
    """Runs a meta-iteration as it is written. Works everywhere."""

    def __init__(
        self,
        learner: FewShotLearner,
        estimator: MetaGradient,
        source: TaskSource,
        *,
        rate: float,
        clip: float = 0.0,
        chunk: int = 0,
        world: World = ALONE,
    ) -> None:
        self.learner = learner
        self.estimator = estimator
        self.source = source
        self.world = world
        self.clip = clip or math.inf
        self.chunk = chunk or None
        self.parameters: list[Tensor] = list(learner.parameters())
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float32)
        self.optimizer: Any = torch.optim.Adam(
            self.parameters, lr=self.rate, fused=True, capturable=device.type == "cuda"
        )

    def __call__(self, plan: Any, rate: float) -> Outcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: Any) -> Outcome:
        episodes = self.source.gather(self.world.share(plan))
        self.optimizer.zero_grad()
        # Weighted by the number of all tasks, so that the sum over processes is the mean over tasks.
        parts = [
            self.estimator.backward(self.learner, chunk, 1 / len(plan))
            for chunk in episodes.chunks(self.chunk)
        ]
        self.world.sum_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        # One meta-gradient that is not finite would poison θ₀ for good. The fused optimiser leaves the
        # step out by itself where this flag is up, so no synchronisation is needed to decide.
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped
        self.optimizer.step()
        return Outcome(torch.cat(parts) if parts else norm.new_empty(0), norm.detach(), skipped)


# The training loop.


WORTH_COMPILING = 100_000
"""Iterations from which `compile = "auto"` compiles: about 2 ms saved by each, against 30 to 40 s once."""

PATIENCE = 100
"""Meta-gradients in a row that may be unusable before a run gives up."""


@dataclass(frozen=True)
class Progress:
    """What a run says of itself while it trains: averages since it last spoke.

    `loss` is the meta-loss and `worst` that of the worst task, `norm` the meta-gradient's before it was
    clipped, `skipped` counts meta-gradients that were not finite. `validation` is the metric on new
    tasks of the validation split, where it was taken; `memory_mb` the most a GPU has held so far.
    """

    iteration: int
    loss: float
    worst: float
    norm: float
    skipped: int
    rate: float
    seconds: float
    validation: float | None = None
    memory_mb: float | None = None


def build(
    config: Config, device: torch.device | None = None, inputs: Mapping[str, Any] | None = None
) -> FewShotLearner:
    """The learner a configuration describes, at its start: a pure function of the seed.

    With the `inputs` that a run has kept, the data set need not be there.
    """
    training = config.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        learner = get_method(config.method).build(
            config.problem.model(inputs),
            config.method_settings,
            config.problem.loss,
            execution=training.execution,
            guard=training.guard,
            checkpoint=training.checkpoint,
        )
    return learner.to(device or training.torch_device, training.torch_dtype)


class Trainer:
    """Meta-training, one iteration at a time, from the start or from a saved state.

    >>> trainer = Trainer(config)                                     # doctest: +SKIP
    >>> while not trainer.done:                                       # doctest: +SKIP
    ...     progress = trainer.advance()

    What an iteration does depends on the configuration, the state and its number, and on nothing else:
    a run that was stopped and restored goes on as if it had not been. The processes of a `world` share the
    tasks out and go on from the writer's state; how many they are changes roundings only.
    """

    def __init__(
        self,
        config: Config,
        state: State | None = None,
        every: int = 100,
        histograms: Histograms | None = None,
        world: World = ALONE,
    ) -> None:
        self.config, self.every, self.world = config, every, world
        training = config.training
        training.apply()
        self.learner = build(config)
        state = world.from_writer(lambda: state)
        self.source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
        if state is None and training.pretrain:
            start_pretrained(self.learner.model, config)
        self.meta = meta_step(config, self.learner, self.source, world=world)
        self.iteration = 0
        if state is not None:
            self.iteration = state.iteration
            state.restore(self.learner, self.meta.optimizer)
        # Each has computed its start itself, but not every GPU rounds alike, least of all in pretraining.
        world.equalise(self.meta.parameters)
        self.step: Callable[[Any, float], Outcome] = captured(self.meta, training.graph)
        self.graphed = self.step if isinstance(self.step, CapturedStep) else None
        self.histograms = histograms
        if training.histograms:
            self.histograms = histograms or Histograms(probed_tensor(self.learner))
            self.step = GradientProbe(
                self.meta, self.histograms, training.histograms, run=self.step, iteration=self.iteration
            )
        self.window = _Window(state.seconds if state else 0.0, world)
        if state is not None and world.size == 1:  # what others had seen is not known
            self.window.wait_with(state.waiting, training.torch_device)

    @property
    def done(self) -> bool:
        return self.iteration >= self.config.training.iterations

    def advance(self) -> Progress | None:
        """One meta-iteration; a report after every `every`-th, after validations and after the last."""
        training = self.config.training
        rate = learning_rate(training, self.iteration)
        if (
            self.meta.estimator.on_progress(self.iteration / training.iterations, self.learner)
            and self.graphed
        ):
            self.graphed.reset()
        plan = self.source.draw(training.tasks, generator(training.seed, "train", self.iteration))
        seed_all(training.seed, "noise", self.iteration)
        self.window.add(self._step(plan, rate))
        self.iteration += 1
        validate = bool(training.validate) and (self.done or self.iteration % training.validate == 0)
        if not (self.done or validate or self.iteration % self.every == 0):
            return None
        if self.window.unusable() >= PATIENCE:
            raise RunError(
                f"the last {PATIENCE} meta-gradients were not finite: lower training.rate or method.rate"
                ", or set training.clip=1 or training.guard=true; the last state and checkpoint are sound"
            )
        validation = _validate(self.config, self.learner, self.world) if validate else None
        return self.window.close(self.iteration, rate, validation)

    def _step(self, plan: Any, rate: float) -> Outcome:
        while True:
            try:
                return self.step(plan, rate)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
            self.meta.optimizer.zero_grad()  # outside of the handler, where the error would hold on to memory
            self._need_less_memory()

    def _need_less_memory(self) -> None:
        """Fewer tasks side by side, then steps that are computed again: no number changes, only time."""
        training, meta = self.config.training, self.meta
        at_once = meta.chunk or training.tasks
        if not training.fit_memory or (at_once == 1 and self.learner.checkpoint):
            raise RunError(
                f"out of memory with {at_once} tasks side by side: training.chunk=1, training.checkpoint=true"
                " take less and change no number; --fit-memory turns to them by itself"
            )
        if at_once > 1:
            meta.chunk = (at_once + 1) // 2
        else:
            self.learner.checkpoint = True
        if self.graphed:
            self.graphed.reset()

    def state(self, best: float | None = None) -> State:
        config = self.config.to_dict()
        waiting, seconds = self.window.waiting(), self.window.seconds
        return State.of(self.learner, self.meta.optimizer, self.iteration, seconds, best, config, waiting)


def train(
    config: Config,
    report: Callable[[Progress, FewShotLearner], None] = lambda progress, learner: None,
    every: int = 100,
) -> FewShotLearner:
    """Meta-train from the start; `report` hears of every `every`-th iteration and of the last."""
    trainer = Trainer(config, every=every)
    while not trainer.done:
        progress = trainer.advance()
        if progress:
            report(progress, trainer.learner)
    return trainer.learner


def meta_step(
    config: Config,
    learner: FewShotLearner,
    source: TaskSource,
    estimator: MetaGradient | None = None,
    world: World = ALONE,
) -> MetaStep:
    """A meta-iteration as a run does it, compiled where it pays."""
    training = config.training
    estimator = estimator or get_method(config.method).estimator(config.method_settings)
    if type(estimator) is Unrolled and compiles(training, learner):
        estimator = CompiledUnrolled(estimator.order)
    return MetaStep(
        learner,
        estimator,
        source,
        rate=training.rate,
        clip=training.clip,
        chunk=training.chunk,
        world=world,
    )


def captured(step: MetaStep, wanted: bool = True) -> MetaStep | CapturedStep[Outcome]:
    """The step from a CUDA graph, if one can be recorded."""
    return CapturedStep(step) if wanted and step.source.capturable else step


def compiles(training: Training, learner: FewShotLearner) -> bool:
    """Whether to compile the meta-iteration. `auto` decides by what a run is and never by the clock, so that
    a run is the same whenever it is repeated; convolutions take longer to compile than most runs last."""
    if training.compile != "auto" or training.torch_device.type != "cpu":
        return training.compile == "on" and training.torch_device.type == "cpu"
    program = learner.execution.program if isinstance(learner, MetaLearner) else None
    small = program is not None and not program.images
    return small and training.iterations >= WORTH_COMPILING and has_compiler()


def learning_rate(training: Training, iteration: int) -> float:
    """Adam's rate at an iteration: constant, or half a cosine from `rate` down to nothing."""
    if training.schedule == "constant":
        return training.rate
    return training.rate * 0.5 * (1 + math.cos(math.pi * iteration / training.iterations))


def _out_of_memory(error: RuntimeError) -> bool:
    """A GPU's has a class of its own; a CPU's is known by what it says."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _validate(config: Config, learner: FewShotLearner, world: World) -> float:
    tasks = config.training.validation_tasks
    result = evaluate(learner, config.problem, split="val", tasks=tasks, world=world)
    return result.values[:, -1].double().mean().item()


class _Window:
    """Averages over the iterations since the last report, summed where the tensors are."""

    def __init__(self, seconds: float = 0.0, world: World = ALONE) -> None:
        self.world = world
        self.started = time.perf_counter() - seconds
        self.outcomes: list[Outcome] = []
        self.earlier = 0  # of the reports before, as `unusable` counts

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def waiting(self) -> dict[str, Tensor]:
        """What the next report will be of, for a state that is saved between two."""
        columns = {f.name: [getattr(o, f.name) for o in self.outcomes] for f in fields(Outcome)}
        stacked = {name: torch.stack(values) for name, values in columns.items() if values}
        return {**stacked, "earlier": torch.tensor(self.earlier)}

    def wait_with(self, found: dict[str, Tensor], device: torch.device) -> None:
        """Take up again what `waiting` gave."""
        self.earlier = int(found["earlier"])
        columns = [found[f.name].to(device) for f in fields(Outcome) if f.name in found]
        self.outcomes = [Outcome(*row) for row in zip(*columns, strict=True)]

    def unusable(self) -> int:
        """How many meta-gradients in a row, up to now, were not finite."""
        flags = torch.stack([o.skipped for o in self.outcomes]).flip(0)
        run = int(flags.cumprod(0).sum())
        return run + self.earlier if run == len(flags) else run

    def add(self, outcome: Outcome) -> None:
        # A replayed graph writes every outcome to the same place.
        self.outcomes.append(Outcome(outcome.losses.clone(), outcome.norm.clone(), outcome.skipped.clone()))

    def close(self, iteration: int, rate: float, validation: float | None) -> Progress:
        self.earlier = self.unusable()
        losses = self.world.gather([torch.stack([o.losses for o in self.outcomes], dim=1)]).T
        norms = torch.stack([o.norm for o in self.outcomes]).to(losses.device)
        sound = (torch.stack([o.skipped for o in self.outcomes]) == 0).to(losses.device)
        on_gpu = self.outcomes[0].norm.is_cuda
        self.outcomes.clear()
        usable = bool(sound.any())
        return Progress(
            iteration=iteration,
            loss=float(losses[sound].mean()) if usable else math.nan,
            worst=float(losses[sound].max()) if usable else math.nan,
            norm=float(norms[sound].mean()) if usable else math.nan,
            skipped=int((~sound).sum()),
            rate=rate,
            seconds=self.seconds,
            validation=validation,
            memory_mb=torch.cuda.max_memory_allocated() / 1e6 if on_gpu else None,
        )
