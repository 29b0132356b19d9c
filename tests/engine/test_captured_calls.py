"""Adaptations from CUDA graphs: the numbers of the loop, whatever changes between two calls."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from pathaware import GradientDescent, MetaLearner, Pamela
from pathaware.engine import cuda_graph
from pathaware.engine.cuda_graph import CapturedCalls, captured_state
from tests.conftest import distance, scatter, small_problem

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def learners(kind: str = "conv", steps: int = 3) -> tuple[MetaLearner, MetaLearner, tuple[Tensor, ...]]:
    """A learner and the same one as a loop on the GPU, and the examples of its tasks."""
    model, loss, episodes = small_problem(kind)
    fast = scatter(MetaLearner(model, Pamela(model, steps, rate=0.1, q_start=0.5, skip=1), loss)).cuda()
    loop = MetaLearner(model, fast.rule, loss, execution="loop").cuda()
    return fast, loop, episodes.to("cuda").tensors()[:3]


def weights(learner: MetaLearner, x: Tensor, y: Tensor) -> Tensor:
    return learner.rule.layout.flatten(learner.adapt(x, y)).detach()


def graphs(learner: MetaLearner) -> int:
    return sum(graph is not None for graph in learner.execution.calls._graphs.values())


@needs_gpu
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_an_adaptation_from_a_graph_ends_where_the_loop_ends(kind):
    fast, loop, (x, y, _) = learners(kind)
    for task in (0, 1, 0, 1):
        assert distance(weights(fast, x[task], y[task]), weights(loop, x[task], y[task])) < 1e-10
    assert graphs(fast) == 1
    assert graphs(loop) == 0


@needs_gpu
@pytest.mark.parametrize("level", ["alone", "batch"])
def test_predictions_from_a_graph_are_those_of_the_loop(level):
    fast, loop, examples = learners()
    with torch.no_grad():
        for _ in range(3):
            ours, theirs = (one.predictions_per_step(*examples, queries=level) for one in (fast, loop))
            for output, expected in zip(ours.outputs, theirs.outputs, strict=True):
                assert distance(output, expected) < 1e-10
            assert torch.equal(ours.reverted, theirs.reverted)
    assert graphs(fast) == 1


@needs_gpu
def test_the_adapted_network_and_its_predictions_come_from_one_graph():
    fast, loop, (x, y, queries) = learners()
    for _ in range(3):
        network, predictions = fast.adapt_each(x, y)[0]
    expected, outputs = loop.adapt_each(x, y)[0]
    with torch.no_grad():
        assert distance(network(queries[0]), expected(queries[0])) < 1e-10
    assert distance(predictions.outputs[-1], outputs.outputs[-1]) < 1e-10
    assert graphs(fast) == 1


@needs_gpu
def test_a_later_call_does_not_change_an_earlier_result():
    fast, _, (x, y, _) = learners()
    for _ in range(2):
        first = fast.adapt(x[0], y[0])
    before = [p.clone() for p in first.parameters()]
    fast.adapt(x[1], y[1])
    assert all(torch.equal(a, b) for a, b in zip(before, first.parameters(), strict=True))


@needs_gpu
def test_a_graph_reads_new_values_and_is_not_used_for_moved_parameters_or_other_settings():
    fast, loop, (x, y, _) = learners()

    def agree() -> bool:
        return all(distance(weights(fast, x[0], y[0]), weights(loop, x[0], y[0])) < 1e-10 for _ in range(3))

    assert agree()
    with torch.no_grad():
        for parameter in fast.parameters():  # shared with the loop
            parameter.mul_(1.1)
    assert agree()
    assert graphs(fast) == 1
    for parameter in fast.model.parameters():
        parameter.data = parameter.data.clone() + 0.01
    assert agree()
    assert graphs(fast) == 2
    fast.guard = loop.guard = False
    assert agree()
    assert graphs(fast) == 3


@needs_gpu
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_changed_loss_or_rule_counts_after_a_capture(kind):
    fast, loop, (x, y, queries) = learners(kind)

    def outputs() -> Tensor:
        with torch.no_grad():
            for _ in range(3):
                ours, theirs = (one.predictions_per_step(x, y, queries).outputs[-1] for one in (fast, loop))
                assert distance(ours, theirs) < 1e-10
        return ours

    first, original = outputs(), fast.loss
    fast.loss = loop.loss = lambda outputs, targets: 2 * original(outputs, targets)
    second = outputs()
    fast.rule = loop.rule = Pamela(fast.model, 2, rate=0.04, q_start=0.5, skip=1).cuda()
    assert distance(first, second) > 1e-4
    assert distance(second, outputs()) > 1e-4


@needs_gpu
def test_another_number_of_steps_is_another_graph():
    fast, loop, (x, y, _) = learners()
    for steps in (1, 2, 3):
        for _ in range(2):
            ours = fast.adapt(x[0], y[0], steps=steps)
        theirs = loop.adapt(x[0], y[0], steps=steps)
        flat = fast.rule.layout.flatten
        assert distance(flat(ours), flat(theirs)) < 1e-10
    assert graphs(fast) == 3


@needs_gpu
def test_threads_that_share_a_learner_get_their_own_results():
    fast, loop, (x, y, _) = learners()
    expected = [weights(loop, x[t], y[t]) for t in (0, 1)]

    def adapt(i: int) -> float:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = weights(fast, x[i % 2], y[i % 2])
            torch.cuda.current_stream().synchronize()
        return distance(found, expected[i % 2])

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as threads:
        assert max(threads.map(adapt, range(40))) < 1e-10


@needs_gpu
def test_a_method_that_synchronises_runs_without_a_graph():
    class Looking(GradientDescent):
        def step(self, j, points, gradient):
            assert gradient.isfinite().all().item()
            return super().step(j, points, gradient)

    model, loss, episodes = small_problem("conv")
    fast = MetaLearner(model, Looking(model, 2, rate=0.05), loss).cuda()
    loop = MetaLearner(model, GradientDescent(model, 2, rate=0.05), loss, execution="loop").cuda()
    x, y = (t.cuda() for t in (episodes.support_x[0], episodes.support_y[0]))
    for _ in range(3):
        assert distance(weights(fast, x, y), weights(loop, x, y)) < 1e-10
    assert fast.execution.calls.failed
    assert graphs(fast) == 0


class Recorded:
    """Stands for a captured call where there is no GPU."""

    def __init__(self, function, tensors, pool) -> None:
        if tensors[0].sum() < 0:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.function = function


@pytest.fixture
def calls(monkeypatch) -> CapturedCalls:
    monkeypatch.setattr(cuda_graph, "_CapturedCall", Recorded)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 1)
    monkeypatch.setattr(
        CapturedCalls, "_replay", lambda self, graph, tensors: [graph.function(*tensors)[0], "replay"]
    )
    return CapturedCalls()


def double(x: Tensor) -> list[Tensor]:
    return [2 * x]


def test_the_second_call_of_a_kind_is_captured_and_few_kinds_are_kept(calls):
    assert len(calls("a", double, torch.ones(2))) == 1
    assert len(calls("a", double, torch.ones(3))) == 1  # another shape
    assert len(calls("b", double, torch.ones(2))) == 1  # another key
    assert calls("a", double, torch.ones(2))[1] == "replay"
    for i in range(cuda_graph.MOST_GRAPHS):
        calls(i, double, torch.ones(2))
    assert len(calls("a", double, torch.ones(2))) == 1  # it was dropped
    assert len(calls._graphs) == cuda_graph.MOST_GRAPHS


def test_what_cannot_be_captured_runs_as_it_is(calls):
    for _ in range(3):
        assert len(calls("a", double, -torch.ones(2))) == 1
    assert calls.failed


def test_a_copy_of_a_learner_has_no_graphs_of_the_original(calls):
    calls("a", double, torch.ones(2))
    assert not copy.deepcopy(calls)._graphs
    assert not pickle.loads(pickle.dumps(calls))._graphs


def test_the_state_of_a_learner_tells_values_from_places_and_settings():
    model, loss, _ = small_problem("mlp")
    learner = MetaLearner(model, GradientDescent(model, 2, rate=0.05), loss)
    before = captured_state(learner)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    assert captured_state(learner) == before
    learner.rule.rate = 0.1
    changed = captured_state(learner)
    assert changed != before
    parameter = next(model.parameters())
    parameter.data = parameter.data.clone()
    assert captured_state(learner) != changed
