"""Properties of every method."""

from __future__ import annotations

import doctest
import inspect
import re
from importlib import import_module
from pkgutil import iter_modules

import pytest
import torch
from torch import Tensor

from pathaware import methods
from pathaware.methods import METHODS, describe_method
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from pathaware_research.paper.method_table import method_experiment
from tests.conftest import distance
from tests.methods.checks import estimated, learner_of, scattered

SAMPLED: set[str] = {"mt-net"}
"""Methods that draw random numbers while they adapt."""

KINDS = [
    (name, kind) for name, m in METHODS.items() for kind in ("conv", "mlp") if kind == "conv" or m.regression
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_tasks_side_by_side_learn_what_they_learn_one_by_one(name, kind):
    """Also: no task sees another."""
    if name in SAMPLED:
        pytest.skip("it draws random numbers for each task")
    learner, outer, episodes = learner_of(name, kind)
    whole = estimated(learner, outer, episodes)
    parts = [estimated(learner, outer, episodes[i : i + 1]) for i in range(len(episodes))]
    assert torch.allclose(whole, torch.stack(parts).mean(0), atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_batched_execution_predicts_as_the_loop_does(name, kind):
    predictions = []
    for execution in ("loop", "auto"):
        torch.manual_seed(1)
        learner, _, episodes = learner_of(name, kind, execution=execution)
        with torch.no_grad():
            predictions.append(learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1])
    assert torch.allclose(*predictions, atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_adapted_module_predicts_as_the_learner_does(name, kind):
    learner, _, episodes = learner_of(name, kind)
    x, y, query_x, _ = episodes.tensors()
    with torch.no_grad():
        expected = learner.predictions_per_step(x[:1], y[:1], query_x[:1]).outputs[-1][0]
        more = {"query_x": query_x[0]} if METHODS[name].transductive else {}
        assert torch.allclose(learner.adapt(x[0], y[0], **more)(query_x[0]), expected, atol=1e-10)


ORDERED = [(name, kind, {}) for name, kind in KINDS] + [("matching", "conv", {"full_context": True})]


@pytest.mark.parametrize(("name", "kind", "settings"), ORDERED)
def test_the_order_of_the_support_set_matters_to_sequence_models_alone(name, kind, settings):
    learner, _, episodes = learner_of(name, kind, **settings)
    x, y, query_x, _ = episodes.tensors()
    scattered(learner)
    order = torch.randperm(x.shape[1])
    with torch.no_grad():
        before = learner.predictions_per_step(x, y, query_x).outputs[-1]
        after = learner.predictions_per_step(x[:, order], y[:, order], query_x).outputs[-1]
    sequential = name in ("lstm", "mann", "meta-networks") or settings == {"full_context": True}
    assert torch.allclose(after, before, atol=1e-9) != sequential


@pytest.mark.parametrize(("name", "kind", "settings"), ORDERED)
def test_a_query_that_is_predicted_alone_knows_of_no_other_but_of_the_labels(name, kind, settings):
    learner, _, episodes = learner_of(name, kind, guard=False, **settings)
    x, y, query_x, _ = episodes.tensors()
    scattered(learner)

    def predictions(labels: Tensor, queries: Tensor) -> Tensor:
        with torch.no_grad():
            return learner.predictions_per_step(x, labels, queries, queries="alone").outputs[-1]

    whole = predictions(y, query_x)
    assert torch.allclose(predictions(y, query_x[:, :1]), whole[:, :1], atol=1e-9)
    assert not torch.equal(predictions(y.flip(1), query_x), whole)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_on_a_gpu_it_predicts_and_learns_as_on_a_cpu(name, kind):
    if name in SAMPLED:
        pytest.skip("each device draws other random numbers")
    learner, outer, episodes = learner_of(name, kind)
    scattered(learner)

    def results(device: str) -> list[Tensor]:
        there = episodes.to(device)
        x, y, query_x, _ = there.tensors()
        learner.to(device)
        with torch.no_grad():  # the third time from a graph
            levels = [learner.predictions_per_step(x, y, query_x, queries=q) for q in ("alone", "batch") * 3]
        return [*(level.outputs[-1].cpu() for level in levels), estimated(learner, outer, there).cpu()]

    for here, there in zip(results("cpu"), results("cuda"), strict=True):
        assert distance(here, there) < 1e-8


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_autocast_gives_nearly_the_results_of_float32(name, kind, device):
    """With the backward pass outside of it, as PyTorch recommends, and inside, as estimators have it."""
    torch.set_default_dtype(torch.float32)
    learner, outer, episodes = learner_of(name, kind)
    scattered(learner, 0.02)
    learner, episodes = learner.to(device), episodes.to(device, torch.float32)
    x, y, query_x, _ = episodes.tensors()

    def results(enabled: bool) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(1)
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            with torch.no_grad():
                levels = [learner.predictions_per_step(x, y, query_x, queries=q) for q in ("alone", "batch")]
                outputs = [level.outputs[-1] for level in levels]
                outputs.append(learner.adapt(x[0], y[0])(query_x[0]))
            losses = learner.adapted_losses(episodes)
        outside = torch.autograd.grad(losses.mean(), list(learner.parameters()), materialize_grads=True)
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            inside = estimated(learner, outer, episodes)
        return [*outputs, losses], [torch.cat([g.flatten() for g in outside]), inside]

    for low, exact, bound in zip(results(enabled=True), results(enabled=False), (0.2, 0.7), strict=True):
        for a, b in zip(low, exact, strict=True):
            assert distance(a.float(), b) < bound  # False for NaN


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_trained_kept_and_opened_again(name, tmp_path):
    torch.set_default_dtype(torch.float32)
    problem = {"name": "sine", "points": 10} if METHODS[name].regression else {"name": "classification"}
    training = {"iterations": 3, "tasks": 2, "device": "cpu", "threads": 1, "validate": 0}
    small = {"width": 4, "shots": 1, "queries": 1} if problem["name"] == "classification" else {}
    config = Config.from_dict(
        {"problem": {**problem, **small}, "method": {"name": name}, "training": training}
    )
    run = train(config, tmp_path / "run")
    evaluated = [
        evaluate(Run.open(run.folder).load("cpu"), config.problem, tasks=4).summary() for _ in range(2)
    ]
    assert evaluated[0] == evaluated[1]
    assert all(row["skipped"] == 0 for row in run.metrics())
    assert [entry["method_version"] for entry in run.provenance()] == [METHODS[name].version]


MODULES = [import_module(f"pathaware.methods.{module.name}") for module in iter_modules(methods.__path__)]
FILES = [module for module in MODULES if hasattr(module, "METHOD")]


def test_every_file_with_a_method_is_registered():
    assert {module.METHOD.name: module.METHOD for module in FILES} == METHODS


@pytest.mark.parametrize("module", FILES, ids=lambda module: module.METHOD.name)
def test_its_file_opens_with_a_citation_and_equations(module):
    method, (first, *rest) = module.METHOD, describe_method(module.METHOD.name).splitlines()
    citation = re.fullmatch(r"\S.* \((.+)\)\.", first)
    assert citation, first
    assert citation[1].startswith(re.split(",| and ", method.paper)[0])
    assert str(method.year) in citation[1]
    assert re.search(r"arXiv:\d{4}\.\d{5}|ICLR|ICML|ICANN", citation[1])
    assert any(re.match(r" {4}\S.*[=∝∇]", line) for line in rest)


def test_a_method_of_your_own_is_described_by_its_module_or_its_rule(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = "from pathaware.methods.reptile import METHOD\n"
    for name, text in {
        "plugin_with_docstring": f'"""Ours, 2026."""\n{code}',
        "plugin_without_docstring": code,
    }.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        import_module(name)
    assert describe_method("plugin_with_docstring:METHOD") == "Ours, 2026."
    assert describe_method("plugin_without_docstring:METHOD") == inspect.getdoc(METHODS["reptile"].adapter)


def test_the_example_of_a_method_in_ten_lines_holds():
    assert doctest.testmod(methods.method) == (0, 4)  # failed, attempted


SLOW = {"mann": 330, "lstm": 330}
"""Iterations of methods that learn nothing at first."""


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_learns_to_tell_glyphs_apart(name, tmp_path):
    """On unseen scripts, at least ten points above the accuracy before adaptation."""
    torch.set_default_dtype(torch.float32)
    config = method_experiment("glyphs", name).config(iterations=SLOW.get(name, 50))
    run = train(config.with_training(device="cpu"), tmp_path / "run")
    before, *_, after = evaluate(run.load("cpu"), config.problem, tasks=100).summary()["accuracy_per_step"]
    assert after > before + 0.1
