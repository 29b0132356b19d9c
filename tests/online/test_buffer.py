from __future__ import annotations

from collections import Counter

import pytest
import torch

from pathaware import UsageError
from pathaware.online.buffer import Buffer, ReplaySample, group_by_shape


def sample(number: int, learned: int = 0) -> ReplaySample:
    item = torch.full((1, 1), float(number)), torch.zeros(1, 1)
    return ReplaySample((item,) * learned, item)


def numbers(buffer: Buffer) -> list[int]:
    return [int(each.held_out[0]) for each in buffer]


def filled(count: int, seed: int, **settings: object) -> Buffer:
    buffer, generator = Buffer(5, **settings), torch.Generator().manual_seed(seed)
    for k in range(count):
        buffer.add(sample(k), generator)
    return buffer


def test_the_oldest_is_forgotten_first():
    assert numbers(filled(12, 0, forget="oldest")) == [7, 8, 9, 10, 11]


def test_a_reservoir_keeps_every_sample_as_likely_as_any_other():
    kept = Counter(number for seed in range(2000) for number in numbers(filled(20, seed)))
    assert sum(kept.values()) == 5 * 2000
    assert min(kept[k] for k in range(20)) > 420  # 500 expected, with a deviation of 19
    assert max(kept.values()) < 580


def test_different_samples_are_drawn_and_no_more_than_there_are():
    buffer, generator = filled(12, 0), torch.Generator().manual_seed(0)
    drawn = buffer.draw(3, generator)
    assert len({int(each.held_out[0]) for each in drawn}) == 3
    assert len(buffer.draw(9, generator)) == 5
    assert Buffer(5).draw(3, generator) == []


def test_samples_of_one_shape_stand_together():
    groups = group_by_shape([sample(0, 1), sample(1, 2), sample(2, 1)])
    assert [[int(each.held_out[0]) for each in group] for group in groups] == [[0, 2], [1]]


def test_more_samples_than_it_holds_cannot_be_loaded():
    state = filled(12, 0).state_dict()
    with pytest.raises(UsageError, match="buffer: 4 is less than the 5 samples"):
        Buffer(4).load_state_dict(state)
