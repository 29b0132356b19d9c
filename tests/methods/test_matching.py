"""Matching networks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.methods.checks import learner_of, scattered

BOTH = pytest.mark.parametrize("full_context", [False, True])


def parts(learner):
    features, queries = torch.randn(2, 6, learner.head.features), torch.randn(2, 4, learner.head.features)
    return features, torch.tensor([[0, 1, 2, 2, 1, 0], [2, 2, 2, 1, 0, 0]]), queries


def test_its_predictions_are_those_of_a_loop_over_every_pair():
    learner, _, _ = learner_of("matching", sharpness=3.0)
    features, targets, queries = parts(learner)
    predictions = learner.head.predict(learner.head.fit(features, targets), queries)
    for task in range(2):
        for q, query in enumerate(queries[task]):
            votes = [0.0, 0.0, 0.0]
            for example, label in zip(features[task], targets[task].tolist(), strict=True):
                votes[label] += math.exp(3 * float(query @ example / query.norm() / example.norm()))
            expected = torch.tensor([math.log(vote / sum(votes)) for vote in votes])
            assert torch.allclose(predictions[task, q], expected)


@BOTH
def test_its_predictions_are_logarithms_of_probabilities(full_context):
    learner, _, _ = learner_of("matching", full_context=full_context)
    features, targets, queries = parts(learner)
    predictions = learner.head.predict(learner.head.fit(features, targets), queries)
    assert torch.allclose(predictions.exp().sum(-1), torch.ones(2, 4))


def lstm(weights, x, h, c):
    """One textbook LSTM step for one vector."""
    from_x, from_h, bias_x, bias_h = weights
    i, f, g, o = (from_x @ x + from_h @ h + bias_x + bias_h).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def test_full_context_is_the_papers_for_every_example_and_query_by_itself():
    learner, _, _ = learner_of("matching", full_context=True, reads=3)
    context = scattered(learner).head.context
    features, _, queries = parts(learner)
    support = context.support(features)
    found = context.query(queries, support)
    directions = [
        [p for n, p in context.along.named_parameters() if n.endswith("reverse") == r] for r in (0, 1)
    ]
    size = features.shape[-1]
    for task in range(2):
        expected = features[task].clone()
        for weights, order in zip(directions, (range(6), reversed(range(6))), strict=True):
            h, c = torch.zeros(2, size)
            for i in order:
                h, c = lstm(weights, features[task, i], h, c)
                expected[i] = expected[i] + h
        assert torch.allclose(support[task], expected)
        for q, query in enumerate(queries[task]):
            h, c = query, torch.zeros(size)
            for _ in range(3):
                read = F.softmax(expected @ h, dim=0) @ expected
                h, c = lstm(list(context.reader.parameters()), torch.cat([query, read]), h, c)
                h = h + query
            assert torch.allclose(found[task, q], h)


def test_a_class_without_examples_is_never_the_answer_and_harms_no_gradient():
    learner, _, _ = learner_of("matching")
    features, _, queries = parts(learner)
    queries.requires_grad_()
    predictions = learner.head.predict(
        learner.head.fit(features, torch.zeros(2, 6, dtype=torch.long)), queries
    )
    (gradient,) = torch.autograd.grad(
        F.cross_entropy(predictions.flatten(0, 1), torch.zeros(8).long()), queries
    )
    assert (predictions.argmax(-1) == 0).all()
    assert gradient.isfinite().all()
