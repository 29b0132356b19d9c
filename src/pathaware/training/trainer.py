"""The training loop: gather tasks, adapt, meta-gradient, sum over processes, clip, optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathaware.core import execution
from pathaware.core.episodes import TaskSource
from pathaware.core.errors import RunError, UsageError
from pathaware.core.execution import Replay, engine
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.last_layer import last_linear
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.seeding import generator, seed_all
from pathaware.methods import get_method
from pathaware.training.config import Config, Training
from pathaware.training.distributed import ALONE, World
from pathaware.training.evaluation import evaluate, tasks_for
from pathaware.training.gradient_probe import GradientProbe, Histograms, probed_tensor
from pathaware.training.pretraining import load_pretrained, start_from
from pathaware.training.progress import MetricsWindow, Progress, StepOutcome
from pathaware.training.state import State

if TYPE_CHECKING:
    from pathaware.training.recipe import Recipe

WORTH_COMPILING = 100_000
"""Iterations from which `compile = "auto"` compiles: it takes 30 to 40 s and saves 0.3 to 2 ms of
each."""

MOST_SKIPPED = 100
"""Consecutive meta-gradients that may be non-finite before a run fails."""


class MetaStep:
    """Runs one meta-iteration eagerly, on any device."""

    def __init__(
        self,
        learner: FewShotLearner,
        estimator: MetaGradient,
        source: TaskSource,
        *,
        rate: float,
        rule_rate: float = 0.0,
        clip: float = 0.0,
        chunk: int = 0,
        world: World = ALONE,
        recipe: Recipe | None = None,
    ) -> None:
        self.learner = learner
        self.execution = learner.execution
        self.estimator = estimator
        self.source = source
        self.world = world
        self.clip = clip or math.inf
        self.chunk = chunk or None
        self.recipe = recipe
        extra: list[Tensor] = [] if recipe is None else list(recipe.trained)
        self.parameters: list[Tensor] = [*(p for p in learner.parameters() if p.requires_grad), *extra]
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float32)
        groups: list[dict[str, Any]] = [{"params": self.parameters, "lr": self.rate}]
        self.ratio, self.rule_rate = rule_rate / rate, self.rate
        if rule_rate:
            network = {id(p) for p in (*learner.model.parameters(), *extra)}
            self.rule_rate = self.rate * self.ratio
            groups = [
                {"params": [p for p in self.parameters if id(p) in network], "lr": self.rate},
                {"params": [p for p in self.parameters if id(p) not in network], "lr": self.rule_rate},
            ]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            [group for group in groups if group["params"]], fused=True, capturable=device.type == "cuda"
        )

    @property
    def changed(self) -> list[Tensor]:
        """All tensors that a step changes, apart from the optimiser's."""
        return [*self.parameters, *([] if self.recipe is None else self.recipe.averaged)]

    def __call__(self, plan: Any, rate: float) -> StepOutcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: Any) -> StepOutcome:
        share = self.world.share(plan)
        tasks = min(len(share), self.chunk or len(share))
        # All of it: threads that wait for PyTorch's next operation would take cores from those of the tasks.
        with self.learner.task_threads(tasks) if self.estimator.task_threads else nullcontext():
            return self._run(share, 1 / len(plan))

    def _run(self, share: Any, weight: float) -> StepOutcome:
        episodes = self.source.gather(share)
        if self.rule_rate is not self.rate:
            torch.mul(self.rate, self.ratio, out=self.rule_rate)
        for parameter in self.parameters:  # `zero_grad` has a price of its own
            parameter.grad = None
        # Weighted by the number of all tasks, so that the sum over processes is the mean over tasks.
        parts = [
            self.estimator.backward(self.learner, chunk, weight) for chunk in episodes.chunks(self.chunk)
        ]
        self.world.sum_gradients(self.parameters)
        norm = self._clipped_norm()
        # One non-finite meta-gradient would ruin θ₀. The fused optimiser skips the step by itself where
        # `found_inf` is 1, so no synchronisation is needed to decide.
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped  # type: ignore[attr-defined]
        self.optimizer.step()
        if self.recipe is not None:
            self.recipe.after_step()
        return StepOutcome(torch.cat(parts) if parts else norm.new_empty(0), norm.detach(), skipped)

    def _clipped_norm(self) -> Tensor:
        """Clip the meta-gradient, if it is to be clipped, and return its norm before that."""
        if self.clip < math.inf:
            return torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def execution_changed(self) -> bool:
        """True if the learner runs its network in another way than when this was last called."""
        before, self.execution = self.execution, self.learner.execution
        return self.execution is not before

    def reset(self) -> None:
        """Do nothing: unlike a captured step, this one holds no recorded graph."""


class Trainer:
    """Meta-training, one iteration at a time, from the initialisation or from a saved state.

    >>> tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 3}}
    >>> trainer = Trainer(Config.from_dict(tables))
    >>> while not trainer.done:
    ...     progress = trainer.advance()
    >>> progress.iteration
    3

    An iteration depends on the configuration, the state and its own number only, so a run that was stopped
    and resumed gives the numbers of one that was not. The processes of a `world` share the tasks of each
    meta-batch and resume from rank 0's state. Their number affects rounding only, except where noise is drawn
    in training (MT-Net, L2L, `training.dropout`): every rank draws its own.
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
        self.learner = build(config, dropout=training.dropout)
        state = world.from_writer(lambda: state)
        source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
        self.source = tasks_for(self.learner, config.problem, source, observe=state is None)
        if state is None and training.pretrain:
            load_pretrained(self.learner.model, config)
        if state is None and training.start:
            start_from(self.learner, Path(training.start))
        self.meta = meta_step(config, self.learner, self.source, world=world)
        self.iteration = 0
        if state is not None:
            self.iteration = state.iteration
            state.restore(self.learner, self.meta.optimizer, self.meta.recipe)
        # Every rank has computed the initialisation, but GPUs round differently, above all in pretraining.
        world.equalise(self.meta.changed)
        self.captured_step = captured(self.meta, training.graph)
        self.step: Callable[[Any, float], StepOutcome] = self.captured_step
        self.histograms = histograms
        if training.histograms:
            self.histograms = histograms or Histograms(probed_tensor(self.learner))
            self.step = GradientProbe(
                self.meta,
                self.histograms,
                training.histograms,
                run=self.captured_step,
                iteration=self.iteration,
            )
        self.window = MetricsWindow(state.seconds if state else 0.0, world)
        if state is not None and world.size == 1:  # a state holds the pending metrics of rank 0 only
            self.window.restore(state.pending, training.torch_device)

    @property
    def done(self) -> bool:
        """True after the last iteration."""
        return self.iteration >= self.config.training.iterations

    def advance(self) -> Progress | None:
        """Run one meta-iteration; return a log entry after every `every`-th, each validation and the last."""
        training = self.config.training
        rate = learning_rate(training, self.iteration)
        invalid = self.meta.estimator.on_progress(self.iteration / training.iterations, self.learner)
        if self.meta.execution_changed() or invalid:
            self.captured_step.reset()
        plan = self.source.draw(training.tasks, generator(training.seed, "train", self.iteration))
        self.window.add(self._step(plan, rate))
        self.iteration += 1
        validate = bool(training.validate) and (self.done or self.iteration % training.validate == 0)
        if not (self.done or validate or self.iteration % self.every == 0):
            return None
        if self.window.consecutive_skipped() >= MOST_SKIPPED:
            raise RunError(
                f"the last {MOST_SKIPPED} meta-gradients were not finite: lower training.rate or "
                "method.rate, or set training.clip=1 or training.guard=true; the last state and "
                "checkpoint are intact"
            )
        validation = _validate(self.config, self.evaluated, self.world) if validate else None
        return self.window.close(self.iteration, rate, validation)

    @property
    def evaluated(self) -> FewShotLearner:
        """The learner that is validated and kept: the one that is trained, or its average."""
        recipe = self.meta.recipe
        if recipe is None or recipe.average is None or not self.config.training.evaluate_average:
            return self.learner
        return recipe.average

    def _step(self, plan: Any, rate: float) -> StepOutcome:
        seed, rank = self.config.training.seed, self.world.rank
        while True:
            # Noise of its own for each rank, and for a repeated attempt that of the first.
            seed_all(seed, "noise", self.iteration, *([rank] if rank else []))
            try:
                return self.step(plan, rate)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
            self.meta.optimizer.zero_grad()  # outside the handler, in which the error keeps tensors alive
            self._reduce_memory()

    def _reduce_memory(self) -> None:
        """Use smaller chunks of tasks, then recompute inner steps. Both change the speed only."""
        training, meta = self.config.training, self.meta
        at_once = meta.chunk or training.tasks
        if not training.fit_memory or (at_once == 1 and self.learner.checkpoint):
            raise RunError(
                f"out of memory with {at_once} tasks side by side: training.chunk=1 and "
                "training.checkpoint=true take less and change no number; training.fit_memory=true sets them "
                "when needed"
            )
        if at_once > 1:
            meta.chunk = (at_once + 1) // 2
        else:
            self.learner.checkpoint = True
        self.captured_step.reset()

    def state(self, best: float | None = None) -> State:
        """The state to resume from; `best` is the best validation so far."""
        config = self.config.to_dict()
        pending, seconds = self.window.pending(), self.window.seconds
        return State.of(
            self.learner,
            self.meta.optimizer,
            self.iteration,
            seconds,
            best,
            config,
            pending,
            self.meta.recipe,
        )


def train(
    config: Config,
    report: Callable[[Progress, FewShotLearner], None] = lambda progress, learner: None,
    every: int = 100,
) -> FewShotLearner:
    """Meta-train from the initialisation; `report` is called every `every` iterations and after the last."""
    trainer = Trainer(config, every=every)
    while not trainer.done:
        progress = trainer.advance()
        if progress:
            report(progress, trainer.learner)
    return trainer.learner


def build(
    config: Config,
    device: torch.device | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    dropout: float = 0.0,
) -> FewShotLearner:
    """Build the learner of a configuration at its initialisation, which depends on the seed only.

    With the `inputs` that a checkpoint keeps (see `Problem.inputs`), the data set is not needed. `dropout` is
    for training with a recipe; it adds no parameters.
    """
    training = config.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        model = config.problem.model(inputs)
        if dropout:
            from pathaware.training.recipe import insert_dropout

            model = insert_dropout(model, dropout)
        learner = get_method(config.method).build(
            model,
            config.method_settings,
            config.problem.loss,
            execution=training.execution,
            guard=training.guard,
            checkpoint=training.checkpoint,
            head=training.head,
            dimensions=training.dimensions,
        )
    if training.head_rate:
        set_head_rate(learner, training.head_rate)
    return learner.to(device or training.torch_device, training.torch_dtype)


def meta_step(
    config: Config,
    learner: FewShotLearner,
    source: TaskSource,
    estimator: MetaGradient | None = None,
    world: World = ALONE,
) -> MetaStep:
    """The meta-iteration of a configuration, compiled where that pays."""
    training = config.training
    recipe = None
    if estimator is None:
        estimator = learner.meta_gradient
        if config.has_recipe:
            from pathaware.training.recipe import recipe_of

            recipe, estimator = recipe_of(config, learner, source, estimator)
    order = estimator.compilable_order
    if order is not None and (fast := engine()) is not None and compiles(training, learner):
        estimator = fast.compiled(order)
    return MetaStep(
        learner,
        estimator,
        source,
        rate=training.rate,
        rule_rate=training.rule_rate,
        clip=training.clip,
        chunk=training.chunk,
        world=world,
        recipe=recipe,
    )


def captured(step: MetaStep, wanted: bool = True) -> MetaStep | Replay[StepOutcome]:
    """Wrap the step in a CUDA graph if one can be captured."""
    return execution.captured(step) if wanted and step.source.capturable else step


def compiles(training: Training, learner: FewShotLearner) -> bool:
    """Decide whether to compile the meta-iteration.

    `auto` looks at the configuration and never at measured times, so that a repeated run is the same run.
    Networks with convolutions take longer to compile than most runs last.
    """
    if training.compile != "auto" or training.torch_device.type != "cpu":
        return training.compile == "on" and training.torch_device.type == "cpu"
    fast = engine()
    if fast is None or not learner.compilable or training.iterations < WORTH_COMPILING:
        return False
    return fast.has_compiler()


def learning_rate(training: Training, iteration: int) -> float:
    """Adam's learning rate at an iteration: constant, or half a cosine from `rate` to zero; both grow
    linearly for the first `warmup` iterations."""
    rate = training.rate * min(1.0, (iteration + 1) / max(1, training.warmup))
    if training.schedule == "constant":
        return rate
    return rate * 0.5 * (1 + math.cos(math.pi * iteration / training.iterations))


def set_head_rate(learner: FewShotLearner, rate: float) -> None:
    """Initialise the learned step sizes of the last layer to `rate`."""
    rule = require_path(learner).rule
    if not rule.step_sizes:
        raise UsageError("head_rate: the method learns no step sizes; leave it out")
    name, _ = last_linear(learner.model)
    ranges = rule.layout.index("tensor")[0]
    inside = torch.tensor([entry.name.startswith(f"{name}.") for entry in rule.layout.entries])[ranges]
    broadcasts = rule.broadcasts()
    for each, factor in rule.step_sizes.items():
        sizes, groups = getattr(rule, each), broadcasts.get(each)
        chosen = inside if groups is None else inside[groups.order[groups.starts[:-1]]]
        with torch.no_grad():
            sizes[..., chosen] = rate / factor


def _out_of_memory(error: RuntimeError) -> bool:
    """True if memory ran out: on a GPU the error has its own class, on a CPU only its message says so."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _validate(config: Config, learner: FewShotLearner, world: World) -> float:
    tasks = config.training.validation_tasks
    result = evaluate(learner, config.problem, split="val", tasks=tasks, world=world)
    return result.values[:, -1].double().mean().item()
