"""Adapt a trained learner to another number of classes than it was trained with.

Tasks number their classes at random, so any trained row of the last layer can initialise any class. With
fewer classes than in training, the first rows are used; with more, rows are repeated in turn, and so are the
coefficients that belong to them. A class among K has 1/K of the examples, so the gradient of its row scales
as 1/K; learned step sizes of these rows are therefore scaled by K, so that rows move as far as in training. A
step size that other layers share stays as it is.

Learned tensors in which classes are a part of an axis are converted part by part (`Rule.class_blocks`). A
method whose tensors depend on the number of classes in another way, such as MeTAL, is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, part_of
from pathaware.core.head import Head
from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.core.rule import Rule
from pathaware.training.checksummed import CHECKPOINT, load_parameters
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.problems import CrossDomain, Problem
from pathaware.training.run_folder import Run

MAX_CLASSES = 100


def change_ways(
    config: Config,
    learned: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    classes: int,
    device: torch.device,
) -> FewShotLearner:
    """Build a run's trained learner for `classes` classes."""
    if not 2 <= classes <= MAX_CLASSES:
        raise UsageError(f"classes: {classes} is not allowed; must be 2 to {MAX_CLASSES}")
    problem: Any = config.problem
    trained = build(config, device, inputs)
    load_parameters(trained, learned, CHECKPOINT)
    if classes == problem.ways:
        return trained
    if (same := trained.for_classes(classes)) is not None:
        return same
    if classes > problem.ways and "more classes" not in trained.allows:
        raise UsageError(
            f"classes: {config.method} was trained for {problem.ways} and can take fewer, not {classes}; "
            f"train it with ways = {classes}"
        )
    changed = build(
        dataclasses.replace(config, problem=dataclasses.replace(problem, ways=classes)), device, inputs
    )
    try:
        changed.load_state_dict(_converted_state(trained, changed, (problem.ways, classes)))
    except ValueError as error:
        raise UsageError(
            f"classes: {config.method} was trained for {problem.ways} and cannot take {classes} ({error}); "
            f"train it with ways = {classes}"
        ) from None
    return changed


def load_for(
    run: Run, device: str, ways: int | None = None, shots: int | None = None, data: str | None = None
) -> tuple[FewShotLearner, Problem]:
    """Load a run's learner and a problem to evaluate it on.

    If given, tasks have `ways` classes, `shots` images per class, and images of another data set, see
    `CrossDomain`.
    """
    problem: Any = run.config.problem
    if data is not None and data != getattr(problem, "data", None):
        problem = CrossDomain.of(problem, data, run.learned()[1])
    changes = {name: value for name, value in (("ways", ways), ("shots", shots)) if value is not None}
    if not changes:
        return run.load(device), problem
    if problem.regression:
        raise UsageError(f"{problem.name} has no classes and no shots to choose", field=next(iter(changes)))
    changed = dataclasses.replace(problem, **changes, varying=False)
    learned, inputs = run.learned()
    place = dataclasses.replace(run.config.training, device=device).torch_device
    return change_ways(run.config, learned, inputs, changed.ways, place), changed


def _converted_state(
    trained: FewShotLearner, changed: FewShotLearner, ways: tuple[int, int]
) -> dict[str, Tensor]:
    """Return the state of `trained` in the shapes of `changed`; `ways` are their numbers of classes."""
    source, target = trained.state_dict(), changed.state_dict()
    broadcasts, step_sizes, layouts = {}, set(), None
    old, new = part_of(trained, Rule), part_of(changed, Rule)
    if old is not None and new is not None:
        layouts = old.layout, new.layout
        pairs = {f"rule.{n}": (c, new.coefficients()[n]) for n, c in old.coefficients().items()}
        step_sizes = {name for name, (c, _) in pairs.items() if c.step_size is not None}
        broadcasts = {n: (c.groups, d.groups) for n, (c, d) in pairs.items() if c.groups and d.groups}
    blocks, changed_blocks = _class_blocks(trained), _class_blocks(changed)
    state = {}
    for name, value in source.items():
        shape = target[name].shape
        scale = name in step_sizes
        if value.shape == shape and not (scale and name in broadcasts):
            state[name] = value
        elif name in broadcasts and layouts:
            before, after = broadcasts[name]
            converted = _per_group(_converted_flat(before(value), *layouts), after)
            state[name] = converted * _common(_growth(value, *layouts), after) if scale else converted
        elif layouts and (value.shape[-1], shape[-1]) == (len(layouts[0]), len(layouts[1])):
            converted = _converted_flat(value, *layouts)
            state[name] = converted * _growth(value, *layouts) if scale else converted
        elif name in blocks:
            state[name] = _by_blocks(value, *(found[name] for found in (blocks, changed_blocks)))
        elif all(sizes == ways or sizes[0] == sizes[1] for sizes in zip(value.shape, shape, strict=True)):
            state[name] = repeat_classes(value, shape)
        else:
            raise ValueError(f"the entries of {name} belong to no class")
    return state


Blocks = dict[str, tuple[int, Sequence[int]]]


def _class_blocks(learner: FewShotLearner) -> Blocks:
    """`class_blocks` of a learner's rule or head, by the names of its state."""
    parts = [(name, part) for name, part in learner.named_children() if isinstance(part, (Rule, Head))]
    return {f"{name}.{each}": blocks for name, part in parts for each, blocks in part.class_blocks().items()}


def _by_blocks(values: Tensor, before: tuple[int, Sequence[int]], after: tuple[int, Sequence[int]]) -> Tensor:
    """Repeat values in turn within each block along an axis."""
    (axis, old), (_, new) = before, after
    parts = []
    for part, size in zip(values.split(list(old), axis), new, strict=True):
        shape = torch.Size([*part.shape[:axis], size, *part.shape[axis + 1 :]])
        parts.append(repeat_classes(part, shape))
    return torch.cat(parts, axis)


def _converted_flat(values: Tensor, before: Layout, after: Layout) -> Tensor:
    """Convert one value per parameter `[…, D]` to the other layout."""
    lead, parts = values.shape[:-1], []
    for part, old, new in zip(values.split(before.sizes, -1), before.entries, after.entries, strict=True):
        converted = repeat_classes(part.reshape(*lead, *old.shape), torch.Size([*lead, *new.shape]))
        parts.append(converted.flatten(len(lead)))
    return torch.cat(parts, -1)


def _growth(like: Tensor, before: Layout, after: Layout) -> Tensor:
    """The factor by which the tensor of each parameter grows, `[D]`: 1 but for those with a row per class."""
    pairs = zip(before.entries, after.entries, strict=True)
    return torch.cat([like.new_full((new.numel,), new.numel / old.numel) for old, new in pairs])


def _per_group(values: Tensor, broadcast: GroupBroadcast) -> Tensor:
    """Return the value of each group, given equal values `[…, D]` of its members."""
    return values[..., broadcast.order[broadcast.starts[:-1]]]


def _common(factors: Tensor, broadcast: GroupBroadcast) -> Tensor:
    """Return the factor of each group, given those of its members, `[D]`; 1 where they differ."""
    first = _per_group(factors, broadcast)
    others = broadcast.sums((factors != first[broadcast.index]).to(factors))
    return torch.where(others == 0, first, 1.0)


def repeat_classes(values: Tensor, shape: torch.Size) -> Tensor:
    """Repeat values along axes of classes, in turn, until they have `shape`.

    In a matrix over classes, entries between copies of one trained class are the mean off-diagonal value.
    """
    if values.shape == shape:
        return values
    axes = [i for i, (old, new) in enumerate(zip(values.shape, shape, strict=True)) if old != new]
    repeated = values
    for axis in axes:
        indices = torch.arange(shape[axis], device=values.device) % values.shape[axis]
        repeated = repeated.index_select(axis, indices)
    if len(axes) == 1:
        return repeated
    count = len(values)
    if len(axes) != 2 or values.shape != (count, count) or shape[0] != shape[1]:
        raise ValueError(f"values {tuple(values.shape)} have no counterpart {tuple(shape)}")
    off_diagonal = (values.sum() - values.diagonal().sum()) / (count * (count - 1))
    index = torch.arange(shape[0], device=values.device)
    copies = (index[:, None] != index) & (index[:, None] % count == index % count)
    return repeated.masked_fill(copies, off_diagonal.item())
