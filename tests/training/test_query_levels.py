"""Levels of transduction, unbalanced query sets, and evaluation that relies on no order of the queries."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.unbalanced import UnbalancedQueries, counts
from pathaware.methods import METHODS
from pathaware.training import evaluation
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.meta_training import build
from pathaware_research.experiments import own_level

PROBLEM = {"name": "classification", "data": "glyphs", "ways": 3, "shots": 2, "queries": 3, "width": 8}


def config(method: str = "maml", **settings) -> Config:
    return Config.from_dict(
        {"problem": PROBLEM, "method": {"name": method, **settings}, "training": {"device": "cpu"}}
    )


def running(method: str) -> Config:
    """Settings with constant statistics; a learner is built without reading those of the pretraining."""
    training = {"device": "cpu", "start": "a pretraining"}
    problem = {**PROBLEM, "statistics": "running"}
    return Config.from_dict({"problem": problem, "method": {"name": method}, "training": training})


def trained_a_little(settings: Config):
    """A learner whose predictions differ from query to query."""
    torch.manual_seed(0)
    learner = build(settings)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return learner


def predictions(learner, episodes: Episodes, level: str):
    with torch.no_grad():
        return learner.predictions_per_step(*episodes.tensors()[:3], queries=level).outputs[-1]


def episodes_of(settings: Config) -> Episodes:
    return settings.problem.tasks("test", "cpu", torch.float32).sample(2, generator(0, "levels"))


def without_last_query(episodes: Episodes) -> Episodes:
    x, y, query_x, query_y = episodes.tensors()
    return Episodes(x, y, query_x[:, :-1], query_y[:, :-1])


@pytest.mark.parametrize("method", ["maml", "metal", "prototypical"])
def test_a_query_alone_does_not_depend_on_the_others_and_in_a_batch_it_does(method):
    settings = config(method)
    learner, episodes = trained_a_little(settings), episodes_of(settings)
    for level, equal in (("alone", True), ("batch", False)):
        whole, part = (predictions(learner, e, level) for e in (episodes, without_last_query(episodes)))
        assert torch.allclose(whole[:, :-1], part, atol=1e-5) == equal


def test_joint_inference_is_that_of_methods_that_adapt_to_the_queries():
    learner, episodes = trained_a_little(config("metal", rate=0.1)), episodes_of(config())
    joint, batch = (predictions(learner, episodes, level) for level in ("joint", "batch"))
    assert not torch.allclose(joint, batch, atol=1e-5)
    assert torch.equal(predictions(learner, episodes, None), joint)


@pytest.mark.parametrize("name", METHODS)
def test_only_methods_that_use_queries_have_joint_inference(name):
    learner = build(config(name))
    assert learner.query_level(None) == own_level(config(name))
    if METHODS[name].transductive:
        assert learner.query_level(None) == learner.query_level("joint") == "joint"
    else:
        assert learner.query_level(None) == "batch"
        with pytest.raises(UsageError, match="queries: the method has no joint inference"):
            learner.query_level("joint")


@pytest.mark.parametrize("name", METHODS)
def test_records_are_looked_up_at_the_level_of_the_learner(name):
    assert build(running(name)).query_level(None) == own_level(running(name))


def test_relation_networks_normalise_over_queries_whatever_the_statistics_of_their_network():
    settings = running("relation")
    learner, episodes = build(settings), episodes_of(settings)
    for level, equal in (("alone", True), ("batch", False)):
        whole, part = (predictions(learner, e, level) for e in (episodes, without_last_query(episodes)))
        assert torch.allclose(whole[:, :-1], part, atol=1e-6) == equal
        result = evaluate(learner, settings.problem, tasks=2, queries=level)
        assert (result.queries, result.summary()["transductive"]) == (level, not equal)
    assert evaluate(learner, settings.problem, tasks=2).queries == own_level(settings) == "batch"


def test_a_method_that_was_built_without_transduction_refuses_joint_inference():
    with pytest.raises(UsageError, match="queries: the method has no joint inference"):
        build(config("metal", transductive=False)).query_level("joint")


def test_regression_is_not_called_transductive_unless_the_method_uses_the_queries():
    for method, expected in (("maml", None), ("metal", True)):
        settings = Config.from_dict({"problem": {"name": "sine"}, "method": {"name": method}})
        result = evaluate(build(settings), settings.problem, tasks=2)
        assert result.summary()["transductive"] is expected


def test_the_result_says_its_level_and_balance():
    settings = config()
    learner = trained_a_little(settings)
    default, alone = (evaluate(learner, settings.problem, tasks=4, queries=q) for q in (None, "alone"))
    alias = evaluate(learner, settings.problem, tasks=4, inductive=True)
    assert (default.queries, alone.queries, default.balance) == ("batch", "alone", "balanced")
    assert torch.equal(alone.values, alias.values)
    assert (default.summary()["transductive"], alone.summary()["transductive"]) == (True, False)
    assert (alone.summary()["queries"], alone.summary()["balance"]) == ("alone", "balanced")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": "some"}, "queries: 'some' must be one of alone, batch, joint"),
        ({"queries": "batch", "inductive": True}, "queries: 'batch' contradicts inductive"),
        ({"balance": "uneven"}, "balance: 'uneven' must be one of balanced, dirichlet"),
    ],
)
def test_other_levels_and_balances_are_refused(options, message):
    settings = config()
    with pytest.raises(UsageError, match=message):
        evaluate(build(settings), settings.problem, tasks=1, **options)


def test_waves_have_no_balance():
    settings = Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "maml"}})
    with pytest.raises(UsageError, match="balance: sine has no classes"):
        evaluate(build(settings), settings.problem, tasks=1, balance="dirichlet")


def as_set(x: torch.Tensor, y: torch.Tensor) -> set[tuple[bytes, int]]:
    return {(image.numpy().tobytes(), int(label)) for image, label in zip(x, y, strict=True)}


def test_unbalanced_tasks_have_the_same_support_sets_and_as_many_queries_in_other_proportions():
    source = config().problem.tasks("test", "cpu", torch.float32)
    balanced = source.sample(50, generator(3, "x"))
    unbalanced = UnbalancedQueries(source).sample(50, generator(3, "x"))
    for x, y, other_x, other_y in zip(*balanced.tensors()[:2], *unbalanced.tensors()[:2], strict=True):
        assert as_set(x, y) == as_set(other_x, other_y)  # in whatever order
    assert unbalanced.query_x.shape == balanced.query_x.shape
    numbers = torch.stack([torch.bincount(labels, minlength=3) for labels in unbalanced.query_y])
    assert (numbers.sum(1) == 9).all()
    assert (numbers != 3).any(1).double().mean() > 0.8
    # Every image still has the label of its class: a query of the same pixels has the same label.
    for task in range(50):
        for x, y in zip(balanced.query_x[task], balanced.query_y[task], strict=True):
            same = (unbalanced.query_x[task] == x).flatten(1).all(1)
            assert (unbalanced.query_y[task][same] == y).all()


def test_proportions_follow_a_dirichlet_distribution_with_alpha_two():
    source = UnbalancedQueries(config().problem.tasks("test", "cpu", torch.float32))
    source.total, source.most = 10_000, 10_000
    shares = source.draw(4000, generator(0, "shares")).counts / 10_000
    assert torch.allclose(shares.mean(0), torch.full((3,), 1 / 3), atol=0.01)
    assert shares.var(0).mean().item() == pytest.approx((1 / 3) * (2 / 3) / 7, rel=0.05)  # α₀ + 1 = 7


def test_counts_add_up_and_no_class_has_more_than_there_are():
    shares = torch.tensor([[0.98, 0.01, 0.01], [0.34, 0.33, 0.33], [0.5, 0.5, 0.0]], dtype=torch.float64)
    assert counts(shares, 9, 5).tolist() == [[5, 2, 2], [3, 3, 3], [5, 4, 0]]


def test_too_few_images_for_unbalanced_queries_is_one_line():
    problem = dataclasses.replace(config().problem, queries=18)
    with pytest.raises(UsageError, match=r"balance: glyphs has a class of 20 images, too few"):
        UnbalancedQueries(problem.tasks("test", "cpu", torch.float32))


@pytest.mark.parametrize("name", METHODS)
def test_evaluation_relies_on_no_order_of_the_queries(name, monkeypatch):
    settings = config(name)
    learner = trained_a_little(settings)

    def shuffled(*arguments):
        source = whole(*arguments)
        gather = source.gather

        def gather_shuffled(plan):
            x, y, query_x, query_y = gather(plan).tensors()
            order = torch.randperm(query_y.shape[1], generator=generator(7, "order"))
            return Episodes(x, y, query_x[:, order], query_y[:, order])

        source.gather = gather_shuffled
        return source

    plain = evaluate(learner, settings.problem, tasks=6).values
    whole = evaluation._source
    monkeypatch.setattr(evaluation, "_source", shuffled)
    again = evaluate(learner, settings.problem, tasks=6).values
    # Rounding may move the argmax of a query that is on the edge between two classes.
    assert (plain - again).abs().max() <= 1 / 9 + 1e-6
    assert (plain != again).double().mean() < 0.1
