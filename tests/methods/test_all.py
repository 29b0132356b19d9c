"""What holds for every method."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

from pathaware.experiments.paper.method_table import method_experiment
from pathaware.methods import METHODS
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.run_folder import Run
from pathaware.training.session import train_run
from tests.methods.checks import estimated, learner_of

SAMPLED: set[str] = {"mt-net"}
"""Methods that draw numbers while they adapt."""

KINDS = [
    (name, kind) for name, m in METHODS.items() for kind in ("conv", "mlp") if kind == "conv" or m.regression
]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_tasks_side_by_side_learn_what_they_learn_one_by_one(name, kind):
    """Also: no task sees another."""
    if name in SAMPLED:
        pytest.skip("it draws numbers for each task")
    learner, outer, episodes = learner_of(name, kind)
    whole = estimated(learner, outer, episodes)
    parts = [estimated(learner, outer, episodes[i : i + 1]) for i in range(len(episodes))]
    assert torch.allclose(whole, torch.stack(parts).mean(0), atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_batched_execution_answers_as_the_loop_does(name, kind):
    answers = []
    for execution in ("loop", "auto"):
        torch.manual_seed(1)
        learner, _, episodes = learner_of(name, kind, execution=execution)
        with torch.no_grad():
            answers.append(learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1])
    assert torch.allclose(*answers, atol=1e-10)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_adapted_module_answers_as_the_learner_does(name, kind):
    learner, _, episodes = learner_of(name, kind)
    x, y, query_x, _ = episodes.tensors()
    with torch.no_grad():
        expected = learner.predictions_per_step(x[:1], y[:1], query_x[:1], inductive=False).outputs[-1][0]
        more = {"query_x": query_x[0]} if METHODS[name].queries else {}
        assert torch.allclose(learner.adapt(x[0], y[0], **more)(query_x[0]), expected, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_trained_kept_and_opened_again(name, tmp_path):
    torch.set_default_dtype(torch.float32)
    problem = {"name": "sine", "points": 10} if METHODS[name].regression else {"name": "classification"}
    training = {"iterations": 3, "tasks": 2, "device": "cpu", "threads": 1, "validate": 0}
    small = {"width": 4, "shots": 1, "queries": 1} if problem["name"] == "classification" else {}
    config = Config.from_dict(
        {"problem": {**problem, **small}, "method": {"name": name}, "training": training}
    )
    run = train_run(config, tmp_path / "run", quiet=True)
    judged = [evaluate(Run.open(run.folder).load("cpu"), config.problem, tasks=4).summary() for _ in range(2)]
    assert judged[0] == judged[1]
    assert all(row["skipped"] == 0 for row in run.metrics())


@pytest.mark.parametrize("name", METHODS)
def test_its_file_is_short_and_opens_with_its_paper(name):
    method = METHODS[name]
    texts = [Path(inspect.getfile(part)).read_text() for part in (method.kind, method.outer)]
    assert all(len(text.splitlines()) < 200 for text in texts)
    author = method.paper.split(",")[0].split(" and ")[0]
    openings = [text.split('"""')[1] for text in texts]
    assert any(author in opening and str(method.year) in opening for opening in openings)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_it_learns_to_tell_glyphs_apart(name, tmp_path):
    """On unseen scripts, at least ten points above where it starts; how well is in the README."""
    torch.set_default_dtype(torch.float32)
    config = method_experiment("glyphs", name).config(iterations=330 if name == "mann" else 50)
    run = train_run(config.with_training(device="cpu"), tmp_path / "run", quiet=True)
    before, *_, after = evaluate(run.load("cpu"), config.problem, tasks=100).summary()["accuracy_per_step"]
    assert after > before + 0.1
