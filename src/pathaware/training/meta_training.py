"""Meta-training as an objective: gather tasks, adapt, meta-gradient, sum over processes, clip, optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, part_of
from pathaware.core.last_layer import last_linear
from pathaware.core.rule import Rule
from pathaware.core.seeding import generator
from pathaware.methods import get_method
from pathaware.training.config import Config
from pathaware.training.distributed import ALONE, World
from pathaware.training.evaluation import evaluate, tasks_for
from pathaware.training.fitting import Fitting
from pathaware.training.gradient_probe import GradientProbe, Histograms, probed_tensor
from pathaware.training.loop import Execute
from pathaware.training.meta_step import MetaStep, meta_step
from pathaware.training.pretrained_classifier import read_start, start_from
from pathaware.training.provenance import NUMERICS, method_version, origin
from pathaware.training.run_files import HISTOGRAMS

if TYPE_CHECKING:
    from pathaware.training.run_folder import Run


class MetaTraining(Fitting):
    """The meta-training of a configuration: `Fitting` with a recipe, validation and checkpoints.

    Invalid settings are an error when it is made, or in `try_out`; a folder is created after both.
    """

    def __init__(self, config: Config, world: World = ALONE) -> None:
        training = config.training
        with _computable():
            learner = build(config, dropout=training.dropout)
            source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
        super().__init__(learner, source, training, world)
        self.config = config
        self.title = f"{config.method} on {config.problem.label}"
        self.validate_every, self.save_every = training.validate, training.save
        self.histograms: Histograms | None = None

    def try_out(self) -> Self:
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
            self.source.draw(training.tasks, generator(training.seed, "check"))
            if training.validate:
                source = config.problem.tasks("val", self.device, training.torch_dtype)
                source.draw(1, generator(training.seed, "check"))
        return self

    def prepare(self, *, new: bool) -> MetaStep:
        config, training = self.config, self.training
        training.apply()
        self.source = tasks_for(self.learner, config.problem, self.source, observe=new)
        if new and training.start:
            start_from(self.learner, Path(training.start))
        recipe, estimator = None, self.learner.meta_gradient
        if config.has_recipe:
            from pathaware.training.recipe import Recipe, RecipeGradient, check_recipe

            order = check_recipe(config, self.learner, estimator)
            recipe = Recipe(config, self.learner, self.source)
            estimator = RecipeGradient(recipe, order)
        self.step = meta_step(training, self.learner, self.source, estimator, self.world, recipe)
        return self.step

    @property
    def kept(self) -> dict[str, nn.Module]:
        recipe = self.step.recipe
        return super().kept if recipe is None else {**super().kept, "extra": recipe}

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
            self.histograms.save(run.folder / HISTOGRAMS)

    def faster(self) -> str:
        ways = ["fewer training.iterations", "fewer training.tasks per iteration"]
        if self.config.method_settings.get("steps", 1) > 1:
            ways.append("fewer method.steps")
        if not self.config.problem.regression:
            ways += [
                "a smaller problem.width",
                "smaller images",
                "a method without an inner loop (prototypical)",
            ]
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


def set_head_rate(learner: FewShotLearner, rate: float) -> None:
    """Initialise the learned step sizes of the last layer to `rate`."""
    rule = part_of(learner, Rule)
    learned = {} if rule is None else rule.coefficients()
    step_sizes = {name: c for name, c in learned.items() if c.step_size is not None}
    if rule is None or not step_sizes:
        raise UsageError("head_rate: the method learns no step sizes; leave it out")
    name, _ = last_linear(learner.model)
    ranges = rule.layout.index("tensor")[0]
    inside = torch.tensor([entry.name.startswith(f"{name}.") for entry in rule.layout.entries])[ranges]
    for each, coefficient in step_sizes.items():
        sizes, groups = getattr(rule, each), coefficient.groups
        chosen = inside if groups is None else inside[groups.order[groups.starts[:-1]]]
        with torch.no_grad():
            sizes[..., chosen] = rate / (coefficient.step_size or 1.0)
