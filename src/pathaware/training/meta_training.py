"""Meta-training as an objective: gather tasks, adapt, meta-gradient, sum over processes, clip, optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathaware.core.episodes import TaskSource
from pathaware.core.errors import RunError, UsageError
from pathaware.core.execution import engine
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
from pathaware.training.loop import Execute, Objective
from pathaware.training.pretrained_classifier import read_start, start_from
from pathaware.training.progress import StepOutcome
from pathaware.training.provenance import NUMERICS, method_version, origin

if TYPE_CHECKING:
    from pathaware.training.recipe import Recipe
    from pathaware.training.run_folder import Run

WORTH_COMPILING = 100_000
"""Iterations from which `compile = "auto"` compiles: it takes 30 to 40 s and saves 0.3 to 2 ms of
each."""


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


class MetaTraining(Objective):
    """Meta-training: how a method learns θ₀ and Φ.

    Invalid settings are an error when it is made, or in `try_out`; a folder is created after both.
    """

    advice = "lower training.rate or method.rate, or set training.clip=1 or training.guard=true"

    def __init__(self, config: Config, world: World = ALONE) -> None:
        self.config, self.world, training = config, world, config.training
        self.title = f"{config.method} on {config.problem.label}"
        self.steps, self.log_every = training.iterations, log_interval(training)
        self.validate_every, self.save_every = training.validate, training.save
        self.device = training.torch_device
        with _computable():
            self.learner = build(config, dropout=training.dropout)
            self.source = config.problem.tasks("train", self.device, training.torch_dtype)
        self.capturable = training.graph and self.source.capturable
        self.histograms: Histograms | None = None

    def try_out(self) -> None:
        """Find out whether these settings can be trained, without training: raise if not."""
        config, training = self.config, self.config.training
        with _computable():
            if training.start:
                read_start(self.learner, Path(training.start))
            estimator = self.learner.meta_gradient
            if training.head != "learned" and not estimator.head_start:
                raise UsageError(
                    f"{config.method} learns the initialisation of every layer, and {training.head!r} would "
                    "replace that of the last one; leave it out",
                    field="head",
                )
            if config.has_recipe:
                from pathaware.training.recipe import check_recipe

                check_recipe(config, self.learner, estimator)
            if training.histograms:
                probed_tensor(self.learner)
            random = generator(training.seed, "check")
            self.source.draw(training.tasks, random)
            if training.validate:
                source = config.problem.tasks("val", self.device, training.torch_dtype)
                source.draw(1, generator(training.seed, "check"))

    def prepare(self, *, new: bool) -> MetaStep:
        config, training = self.config, self.config.training
        training.apply()
        self.source = tasks_for(self.learner, config.problem, self.source, observe=new)
        if new and training.start:
            start_from(self.learner, Path(training.start))
        self.step = meta_step(config, self.learner, self.source, world=self.world)
        return self.step

    @property
    def kept(self) -> dict[str, nn.Module]:
        recipe = self.step.recipe
        return {"learner": self.learner, **({} if recipe is None else {"extra": recipe})}

    def schedule(self, iteration: int) -> tuple[float, bool]:
        invalid = self.step.estimator.on_progress(iteration / self.steps, self.learner)
        return learning_rate(self.config.training, iteration), self.step.execution_changed() or invalid

    def plan(self, iteration: int) -> Any:
        training = self.config.training
        return self.source.draw(training.tasks, generator(training.seed, "train", iteration))

    def noise(self, iteration: int) -> None:
        rank = self.world.rank  # every rank draws its own
        seed_all(self.config.training.seed, "noise", iteration, *([rank] if rank else []))

    @property
    def evaluated(self) -> FewShotLearner:
        """The learner that is validated and kept: the one that is trained, or its average."""
        recipe = self.step.recipe
        if recipe is None or recipe.average is None or not self.config.training.evaluate_average:
            return self.learner
        return recipe.average

    def validate(self) -> float:
        tasks = self.config.training.validation_tasks
        result = evaluate(self.evaluated, self.config.problem, split="val", tasks=tasks, world=self.world)
        return result.values[:, -1].double().mean().item()

    def improves(self, value: float, best: float | None) -> bool:
        return self.config.problem.metric.improves(value, best)

    def save(self, run: Run, done: int, value: float | None) -> None:
        run.save(self.evaluated, done)

    def after_validation(self, run: Run, done: int, value: float) -> None:
        if self.config.training.snapshots:
            run.save_snapshot(self.evaluated, done, value)

    def observe(self, execute: Execute, run: Run | None, iteration: int) -> Execute:
        every = self.config.training.histograms
        if not every:
            return execute
        before = run.histograms() if run is not None and iteration else None
        self.histograms = before or Histograms(probed_tensor(self.learner))
        return GradientProbe(self.step, self.histograms, every, run=execute, iteration=iteration)

    def save_observed(self, run: Run) -> None:
        if self.histograms:
            run.save_histograms(self.histograms)

    def save_memory(self) -> None:
        """Use smaller chunks of tasks, then recompute inner steps. Both change the speed only."""
        training, step = self.config.training, self.step
        at_once = step.chunk or training.tasks
        if not training.fit_memory or (at_once == 1 and self.learner.checkpoint):
            raise RunError(
                f"out of memory with {at_once} tasks side by side: training.chunk=1 and "
                "training.checkpoint=true take less and change no number; training.fit_memory=true sets them "
                "when needed"
            )
        if at_once > 1:
            step.chunk = (at_once + 1) // 2
        else:
            self.learner.checkpoint = True

    def faster(self) -> str:
        ways = ["fewer training.iterations", "fewer training.tasks per iteration"]
        if self.config.method_settings.get("steps", 1) > 1:
            ways.append("fewer method.steps")
        if not self.config.problem.regression:
            images = ["a smaller problem.width", "smaller images"]
            ways += [*images, "a method without an inner loop (prototypical)"]
        return f"what would be faster: {', '.join(ways)}, or a GPU"

    def settings(self) -> dict[str, Any]:
        return self.config.to_dict()

    def origin(self, iteration: int) -> dict[str, Any]:
        return {
            **origin(iteration, self.device),
            "processes": self.world.size,
            "numerics": NUMERICS,
            "method_version": method_version(self.config),
        }


@contextmanager
def _computable() -> Iterator[None]:
    """A context in which what PyTorch cannot allocate or index is an error of the settings."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError) as error:
        # PyTorch has many errors for what it cannot allocate or index.
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"these settings cannot be computed here ({reason})") from None


def log_interval(training: Training) -> int:
    """Iterations between log entries: a hundred entries of a short run, and more of a long one."""
    return max(1, min(100, training.iterations // 100))


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
