"""Meta networks: fast weights from loss gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.head import one_hot
from pathaware.methods.meta_networks import PARTS, MetaNetworks, TwoLayers, read
from tests.conftest import distance
from tests.methods.checks import differences, estimated, learner_of, scattered

SMALL = {"hidden": 4, "generator": 3}


def lively(learner):
    """Perturbed by enough that every part of the network matters."""
    return scattered(learner, 0.5)


def test_its_meta_gradient_equals_finite_differences_where_gradients_are_held(monkeypatch):
    learner, outer, episodes = learner_of("meta-networks", **SMALL)
    lively(learner)
    held = {}

    def hold(self, features, labels):
        if id(self) not in held:
            held[id(self)] = gradients(self, features, labels)
        return held[id(self)]

    gradients = TwoLayers.gradients
    monkeypatch.setattr(TwoLayers, "gradients", hold)
    found = estimated(learner, outer, episodes)
    expected, chosen = differences(learner, lambda: learner.query_loss(episodes), most=200)
    assert distance(found[chosen], expected) < 1e-6


def test_gradients_in_closed_form_are_those_of_autograd():
    layers = TwoLayers(4, 3, 5)
    features, labels = torch.randn(2, 6, 4), torch.eye(5)[torch.randint(5, (2, 6))]
    first, second = layers.gradients(features, labels)
    assert not first.requires_grad
    for task in range(2):
        for i in range(6):
            logits = layers.second(layers.first(features[task, i]).relu())
            loss = F.cross_entropy(logits, labels[task, i].argmax())
            expected = torch.autograd.grad(loss, [layers.first.weight, layers.second.weight])
            assert torch.allclose(first[task, i], expected[0])
            assert torch.allclose(second[task, i], expected[1])


def plain_preprocessed(g: float) -> list[float]:
    p = 7.0
    return [math.log(abs(g)) / p, math.copysign(1, g)] if abs(g) >= math.exp(-p) else [-1.0, math.exp(p) * g]


def plain_m(head: MetaNetworks, gradient: Tensor) -> Tensor:
    """Fast weights of one example, coordinate by coordinate."""
    values = []
    for g in gradient.flatten().tolist():
        v = torch.tensor(plain_preprocessed(g))
        for layer in (head.generator_first, head.generator_second):
            v = layer(v).relu()
        values.append(head.generator_output(v))
    return torch.stack(values).view_as(gradient)


def plain_d(head: MetaNetworks, gradients: list[Tensor]) -> Tensor:
    """Fast weights of a task from a list of gradients, coordinate by coordinate."""
    n, values = head.task_output.in_features, []
    for gs in zip(*(g.flatten().tolist() for g in gradients), strict=True):
        h = c = torch.zeros(n)
        for g in gs:
            raw = head.task_lstm.gates(torch.cat([torch.tensor(plain_preprocessed(g)), h]))
            take, forget, show, new = raw[:n], raw[n : 2 * n], raw[2 * n : 3 * n], raw[3 * n :]
            c = forget.sigmoid() * c + take.sigmoid() * new.tanh()
            h = show.sigmoid() * c.tanh()
        values.append(head.task_output(h))
    return torch.stack(values).view_as(gradients[0])


@pytest.mark.parametrize("examples", [6, 3])
def test_it_is_the_algorithm_of_the_paper_example_by_example(examples):
    """Algorithm 1 of the paper in plain loops, with gradients by autograd."""
    learner, _, episodes = learner_of("meta-networks", **SMALL)
    head = lively(learner).head
    x, y, query_x, _ = episodes.tensors()
    features, queries = learner.features(x[:, :examples]).detach(), learner.features(query_x).detach()
    found = head.predict(head.fit(features, y[:, :examples]), queries)[0]

    def losses(layers, rows):
        labels = y[0, :examples][rows]
        logits = layers.second(layers.first(features[0][rows]).relu())
        return F.cross_entropy(logits, labels)

    def gradients(layers, rows):
        return torch.autograd.grad(losses(layers, rows), [layers.first.weight, layers.second.weight])

    parts = torch.arange(examples).tensor_split(min(PARTS, examples))
    fast_key = plain_d(head, [gradients(head.embedding, rows)[0] for rows in parts])
    memory = [[plain_m(head, g) for g in gradients(head.base, [i])] for i in range(examples)]

    def key(f):
        return head.embedding.first.weight @ f + fast_key @ f

    for i, f in enumerate(queries[0]):
        cosines = [F.cosine_similarity(key(f), key(f_i), dim=0) for f_i in features[0]]
        attention = (torch.stack(cosines) * head.log_sharpness.exp()).softmax(0)
        fast = [sum(a * w[k] for a, w in zip(attention, memory, strict=True)) for k in range(2)]
        hidden = (head.base.first.weight @ f).relu() + (fast[0] @ f).relu()
        assert torch.allclose(found[i], head.base.second.weight @ hidden + fast[1] @ hidden, atol=1e-10)


def test_without_fast_weights_it_is_the_base_learner():
    learner, _, episodes = learner_of("meta-networks", **SMALL)
    head = learner.head
    with torch.no_grad():
        head.generator_output.weight.zero_()
        head.generator_output.bias.zero_()
    x, y, query_x, _ = episodes.tensors()
    features = learner.features(query_x)
    found = learner.predictions_per_step(x, y, query_x).outputs[-1]
    assert torch.allclose(found, head.base.second(head.base.first(features).relu()))


def test_full_attention_reads_the_weights_of_one_example():
    memory, inputs = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 5)
    attention = one_hot(torch.randint(3, (2, 6)), 3, inputs)
    found = read(attention, memory, inputs)
    for task in range(2):
        for q in range(6):
            expected = memory[task, attention[task, q].argmax()] @ inputs[task, q]
            assert torch.allclose(found[task, q], expected)
