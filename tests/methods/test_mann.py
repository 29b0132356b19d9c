"""Memory-augmented networks."""

from __future__ import annotations

import math

import pytest
import torch

from pathaware.methods.mann import FAINT, look_up, write
from tests.methods.checks import learner_of, scattered

SMALL = {"slots": 4, "size": 3, "hidden": 5}


def plain_look_up(memory, key, gain):
    """Read weights of one task; `memory` is a list of rows."""
    likeness = [float(row @ key) / (math.sqrt(row @ row) * math.sqrt(key @ key) + FAINT) for row in memory]
    shares = [math.exp(gain * value) for value in likeness]
    return [share / sum(shares) for share in shares]


@torch.no_grad()
def plain_memory(head, features, labels, decay):
    """The memory of one task, slot by slot; also how often each was the least used."""
    memory = [torch.zeros(head.size) for _ in range(head.slots)]
    usage, looked_up, emptied = [0.0] * head.slots, [0.0] * head.slots, [0] * head.slots
    hidden = cell = torch.zeros(1, head.controller.hidden_size)
    read = torch.zeros(head.size)
    for x, y in zip(features, labels, strict=True):
        hidden, cell = head.controller(torch.cat([x, y, read])[None], (hidden, cell))
        key, gate = torch.tanh(head.key(hidden[0])), float(torch.sigmoid(head.gate(hidden[0])))
        least = min(range(head.slots), key=usage.__getitem__)
        emptied[least] += 1
        memory[least] = torch.zeros(head.size)
        written = [gate * looked_up[i] + (1 - gate) * (i == least) for i in range(head.slots)]
        memory = [row + share * key for row, share in zip(memory, written, strict=True)]
        looked_up = plain_look_up(memory, key, float(head.gain))
        read = sum(share * row for share, row in zip(looked_up, memory, strict=True))
        usage = [decay * u + r + w for u, r, w in zip(usage, looked_up, written, strict=True)]
    return torch.stack(memory), read, emptied


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_its_memory_is_that_of_a_plain_loop_over_slots(decay):
    """With fewer slots than examples, so that some are written again."""
    learner, _, episodes = learner_of("mann", decay=decay, **SMALL)
    head = scattered(learner, 0.5).head
    features = learner.features(episodes.support_x).detach()
    memory, _, _, read = head.fit(features, episodes.support_y)
    for task, targets in enumerate(episodes.support_y):
        labels = torch.eye(3)[targets]
        expected, last, emptied = plain_memory(head, features[task], labels, decay)
        assert max(emptied) > 1
        assert torch.allclose(memory[task], expected)
        assert torch.allclose(read[task], last)


def test_what_is_read_is_a_softmax_of_cosines():
    memory, keys = torch.randn(2, 6, 4), torch.randn(2, 3, 4)
    found = look_up(memory, keys, torch.tensor(3.0))
    for task in range(2):
        for i in range(3):
            expected = plain_look_up(list(memory[task]), keys[task, i], 3.0)
            assert torch.allclose(found[task, i], torch.tensor(expected))


def test_a_key_that_was_written_is_found_again():
    keys, memory = torch.eye(4)[None], torch.zeros(1, 8, 4)
    nothing = usage = torch.zeros(1, 8)
    for key in keys.unbind(1):
        memory, weights = write(memory, key, torch.zeros(1, 1), nothing, usage)
        usage = usage + weights
    assert torch.allclose(look_up(memory, keys, torch.tensor(50.0)) @ memory, keys)


def test_an_open_gate_writes_where_it_read_and_a_closed_one_where_nothing_is_used():
    memory, key = torch.randn(1, 3, 2), torch.randn(1, 2)
    looked_up, usage = torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[1.0, 2.0, 0.5]])
    opened, _ = write(memory, key, torch.ones(1, 1), looked_up, usage)
    closed, _ = write(memory, key, torch.zeros(1, 1), looked_up, usage)
    nothing = torch.zeros(2)
    assert torch.allclose(opened[0], torch.stack([memory[0, 0], memory[0, 1] + key[0], nothing]))
    assert torch.allclose(closed[0], torch.stack([memory[0, 0], memory[0, 1], key[0]]))
