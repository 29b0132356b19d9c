"""A learner for another number of classes than it was trained with.

Tasks number their classes at random, so any trained row of the last layer will do as the start of any class.
With fewer classes than in training the first rows are taken, with more they are taken again in turn; so are
the coefficients that belong to them. A class among K is one example in K, so the slope of its row is as 1/K;
where a rule has learned how far rows move, they move as far as in training when rates grow as K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner, MetaLearner
from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.methods import get_method
from pathaware.training.config import Config
from pathaware.training.trainer import build

MOST_CLASSES = 100


def for_classes(
    config: Config,
    learned: Mapping[str, Tensor],
    inputs: Mapping[str, Any],
    classes: int,
    device: torch.device,
) -> FewShotLearner:
    """The learner that a run has trained, made to tell `classes` apart."""
    if not 2 <= classes <= MOST_CLASSES:
        raise UsageError(f"classes: {classes} is not allowed; 2 to {MOST_CLASSES}")
    problem: Any = config.problem
    own = build(config, device, inputs)
    own.load_state_dict(dict(learned))
    if classes == problem.ways:
        return own
    if classes > problem.ways and get_method(config.method).kind.fixed_ways:
        raise UsageError(
            f"classes: {config.method} was trained for {problem.ways} and can take fewer, not {classes}; "
            f"train it with --ways {classes}"
        )
    wanted = dataclasses.replace(config, problem=dataclasses.replace(problem, ways=classes))
    other = build(wanted, device, inputs)
    try:
        other.load_state_dict(_carried_over(own, other))
    except ValueError as error:
        raise UsageError(
            f"classes: {config.method} was trained for {problem.ways} and cannot take {classes} ({error}); "
            f"train it with --ways {classes}"
        ) from None
    return other


def _carried_over(own: FewShotLearner, other: FewShotLearner) -> dict[str, Tensor]:
    """What `own` knows, in the shapes of `other`."""
    known, wanted = own.state_dict(), other.state_dict()
    spreads, rates, flat = {}, set(), None
    if isinstance(own, MetaLearner) and isinstance(other, MetaLearner):
        flat = own.rule.layout, other.rule.layout
        rates = {f"rule.{name}" for name in own.rule.step_sizes}
        spreads = {f"rule.{n}": (s, other.rule.broadcasts()[n]) for n, s in own.rule.broadcasts().items()}
    found = {}
    for name, value in known.items():
        shape = wanted[name].shape
        more = name in rates
        if value.shape == shape:
            found[name] = value
        elif name in spreads and flat:
            before, after = spreads[name]
            found[name] = _grouped(_laid_out(before(value), *flat, more=more), after)
        elif flat and (value.shape[-1], shape[-1]) == (len(flat[0]), len(flat[1])):
            found[name] = _laid_out(value, *flat, more=more)
        else:
            found[name] = for_others(value, shape)
    return found


def _laid_out(values: Tensor, before: Layout, after: Layout, *, more: bool) -> Tensor:
    """Numbers for every parameter `[…, D]`, for those of the other network; with `more`, as rates grow."""
    lead, parts = values.shape[:-1], []
    for part, old, new in zip(values.split(before.sizes, -1), before.entries, after.entries, strict=True):
        found = for_others(part.reshape(*lead, *old.shape), torch.Size([*lead, *new.shape]))
        growth = new.numel / old.numel if more else 1.0
        parts.append((found * growth).flatten(len(lead)))
    return torch.cat(parts, -1)


def _grouped(values: Tensor, spread: GroupBroadcast) -> Tensor:
    """The coefficient of each group, which is that of all its members `[…, D]`."""
    return values[..., spread.order[spread.starts[:-1]]]


def for_others(values: Tensor, shape: torch.Size) -> Tensor:
    """Values over classes, for another number of classes: in turn, those of the trained ones.

    In a matrix over classes, two that repeat one trained class meet as two different ones do on average.
    """
    if values.shape == shape:
        return values
    axes = [i for i, (old, new) in enumerate(zip(values.shape, shape, strict=True)) if old != new]
    found = values
    for axis in axes:
        turns = torch.arange(shape[axis], device=values.device) % values.shape[axis]
        found = found.index_select(axis, turns)
    if len(axes) == 1:
        return found
    count = len(values)
    if len(axes) != 2 or values.shape != (count, count) or shape[0] != shape[1]:
        raise ValueError(f"values {tuple(values.shape)} have no counterpart {tuple(shape)}")
    others = (values.sum() - values.diagonal().sum()) / (count * (count - 1))
    place = torch.arange(shape[0], device=values.device)
    twins = (place[:, None] != place) & (place[:, None] % count == place % count)
    return found.masked_fill(twins, others.item())
