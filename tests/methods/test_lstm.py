"""The LSTM that learns to learn."""

from __future__ import annotations

import math

import pytest
import torch

from pathaware import Episodes
from pathaware.core.head import one_hot
from tests.methods.checks import learner_of, scattered

SMALL = {"hidden": 5}


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def plain_cell(cell, inputs: list[float], h: list[float], c: list[float]) -> tuple[list[float], list[float]]:
    """One step of an LSTM in plain arithmetic."""

    def linear(weight, bias, values):
        rows = zip(weight.tolist(), bias.tolist(), strict=True)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in rows]

    parts = linear(cell.weight_ih, cell.bias_ih, inputs), linear(cell.weight_hh, cell.bias_hh, h)
    raw, n = [a + b for a, b in zip(*parts, strict=True)], len(h)
    new_c = [sigmoid(raw[n + k]) * c[k] + sigmoid(raw[k]) * math.tanh(raw[2 * n + k]) for k in range(n)]
    return [sigmoid(raw[3 * n + k]) * math.tanh(new_c[k]) for k in range(n)], new_c


def normalised(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    return [(v - mean) / math.sqrt(variance + 1e-5) for v in values]


@pytest.mark.parametrize("kind", ["conv", "mlp"])
@pytest.mark.parametrize("labels", ["with", "after"])
def test_it_is_a_plain_loop_over_examples_with_their_labels_or_those_before(kind, labels):
    learner, _, episodes = learner_of("lstm", kind, layers=2, label=labels, **SMALL)
    head = scattered(learner, 0.3).head
    x, y, query_x, _ = episodes.tensors()
    features, queries = learner.features(x).detach(), learner.features(query_x).detach()
    values = one_hot(y, head.outputs, features)
    found = head.predict(head.fit(features, y), queries)
    task, query = 1, 3
    states = [([0.0] * 5, [0.0] * 5) for _ in head.cells]
    nothing = [0.0] * head.outputs
    shown = values[task].tolist()
    shown = [*shown, nothing] if labels == "with" else [nothing, *shown]
    for image, label in zip([*features[task].tolist(), queries[task, query].tolist()], shown, strict=True):
        below = [*normalised(image), *label]
        for i, cell in enumerate(head.cells):
            states[i] = plain_cell(cell, below, *states[i])
            below = states[i][0]
    expected = head.decode(torch.tensor(states[-1][0]))
    assert torch.allclose(found[task, query], expected, atol=1e-12)


def test_it_learns_to_fit_functions():
    """Function approximation, as in its paper: lines through the origin, from two points of each."""
    learner, outer, _ = learner_of("lstm", "mlp", hidden=20)
    optimizer = torch.optim.Adam(learner.parameters(), 1e-2)
    losses = []
    for _ in range(150):
        slope, x = torch.randn(32, 1, 1), torch.randn(32, 7, 1)
        episodes = Episodes(x[:, :2], slope * x[:, :2], x[:, 2:], slope * x[:, 2:])
        optimizer.zero_grad()
        losses.append(outer.backward(learner, episodes, 1 / 32).mean().item())
        optimizer.step()
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


@pytest.mark.parametrize("changed", [0, -1])
@pytest.mark.parametrize("labels", ["with", "after"])
def test_every_label_matters_the_last_one_too(changed, labels):
    learner, _, episodes = learner_of("lstm", label=labels)
    x, y, query_x, _ = episodes.tensors()
    other = y.clone()
    other[:, changed] = (other[:, changed] + 1) % 3
    predictions = [learner.predictions_per_step(x, each, query_x).outputs[-1] for each in (y, other)]
    assert not torch.allclose(*predictions, atol=1e-6)


def test_at_first_its_state_keeps_what_it_has_read():
    """Forget gates are open, so that the first example still counts after many others."""
    learner, _, _ = learner_of("lstm", "mlp", hidden=50)
    cell = learner.head.cells[0]
    h = torch.zeros(1, 50)
    zeros = torch.zeros(1, cell.input_size)
    kept = cell(zeros, (h, torch.ones(1, 50)))[1] - cell(zeros, (h, torch.zeros(1, 50)))[1]
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 + math.exp(-3))))
