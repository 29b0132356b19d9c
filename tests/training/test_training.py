"""Training end to end, small."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import GradientDescent, MetaLearner
from pathaware.core.errors import UsageError
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.fitting import learning_rate
from pathaware.training.meta_training import MetaTraining, build
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from tests.training.fits import in_memory, trained


def config(method: str = "pamela", problem: dict | None = None, **training) -> Config:
    return Config.from_dict(
        {
            "problem": problem or {"name": "sine", "shots": 10, "points": 50},
            "method": {"name": method},
            "training": {"iterations": 150, **training},
        }
    )


def error(settings: Config, learner) -> float:
    return evaluate(learner, settings.problem, tasks=100).values[:, -1].mean().item()


@pytest.mark.parametrize("method", ["fomaml", "reptile", "pamela"])
def test_methods_learn_to_adapt(method):
    """Some hundred iterations bring the error after adaptation well below that of an untrained start."""
    settings = config(method, rate=5e-3)
    assert error(settings, trained(settings)) < 0.75 * error(settings, build(settings))


def test_the_same_seed_trains_the_same_parameters_bit_by_bit():
    first, again, other = (trained(config(iterations=20, seed=s)) for s in (0, 0, 1))
    state = first.state_dict()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in state.items())
    assert not torch.equal(state["model.0.weight"], other.state_dict()["model.0.weight"])


def test_precision_is_a_matter_of_gpus_and_changes_nothing_on_a_cpu():
    both = [trained(config(iterations=3, precision=p)).state_dict() for p in ("fp32", "bf16")]
    assert torch.get_float32_matmul_precision() == "highest"
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])


class WithDropout(nn.Module):
    def __init__(self, fraction):
        super().__init__()
        self.fraction, self.dropout = fraction, nn.Dropout(fraction)
        self.hidden, self.head = nn.Linear(1, 40), nn.Linear(40, 1)
        self.norm = nn.BatchNorm1d(40, track_running_stats=False)

    def forward(self, x):
        hidden = F.dropout(self.norm(self.hidden(x)).relu(), self.fraction, self.training)
        return self.head(self.dropout(hidden))


def test_evaluation_is_without_dropout():
    errors = []
    for fraction in (0.5, 0.0):
        torch.manual_seed(0)
        model = WithDropout(fraction)
        learner = MetaLearner(model, GradientDescent(model, 2), F.mse_loss, execution="loop")
        errors += [error(config(), learner) for _ in range(2)]
        assert all(module.training for module in learner.modules())
    assert len(set(errors)) == 1


def test_evaluation_meets_the_same_tasks_whatever_was_drawn_before():
    settings = config()
    learner = build(settings)
    torch.rand(7)
    first = evaluate(learner, settings.problem, tasks=30).values
    assert torch.equal(evaluate(learner, settings.problem, tasks=30).values, first)
    assert not torch.equal(evaluate(learner, settings.problem, tasks=30, seed=1).values, first)


def test_a_shorter_evaluation_is_the_beginning_of_a_longer_one_in_any_batch():
    settings = config()
    learner = build(settings)
    whole = evaluate(learner, settings.problem, tasks=130).values
    for tasks, batch in ((130, 7), (30, 100), (101, 1)):
        part = evaluate(learner, settings.problem, tasks=tasks, batch=batch).values
        assert torch.allclose(part, whole[:tasks], rtol=1e-4)


def test_the_summary_counts_every_task():
    settings = config()
    result = evaluate(build(settings), settings.problem, tasks=30, batch=7)
    summary = result.summary()
    final = result.values[:, -1].double()
    assert result.values.shape == (30, 6)
    assert summary["tasks"] == 30
    assert summary["mse"] == pytest.approx(final.mean().item())
    assert summary["mse_max"] == pytest.approx(final.max().item())
    assert summary["mse_ci95"] == pytest.approx(1.96 * final.std().item() / 30**0.5)
    assert len(summary["mse_per_step"]) == 6


def test_the_cosine_falls_from_the_rate_to_nothing():
    training = config(iterations=100).training
    rates = [learning_rate(training, i) for i in (0, 50, 99)]
    assert rates[0] == training.rate
    assert rates[1] == pytest.approx(training.rate / 2)
    assert rates[2] < 1e-3 * training.rate


def test_a_run_keeps_what_a_run_keeps(tmp_path):
    settings = config(iterations=20)
    run = train(settings, tmp_path / "run")
    files = {path.name.split(".tfevents")[0] for path in run.folder.iterdir()}
    assert files == {
        "config.toml",
        "metrics.jsonl",
        "provenance.json",
        "checkpoint.safetensors",
        "events.out",
    }
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["iteration"] == 20
    reopened = Run.open(run.folder)
    assert reopened.config == settings
    assert reopened.finished
    assert run.trained() is run.built
    assert error(settings, reopened.load()) == error(settings, run.trained())


def test_a_finished_run_is_opened_not_trained_again(tmp_path):
    first = train(config(iterations=5), tmp_path / "run", resume=True)
    stamp = (first.folder / "checkpoint.safetensors").stat().st_mtime_ns
    train(config(iterations=5), tmp_path / "run", resume=True)
    assert (first.folder / "checkpoint.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(UsageError, match=r"out: .* holds another run"):
        train(config(iterations=6), tmp_path / "run", resume=True)


def test_the_best_checkpoint_by_validation_is_the_one_kept(tmp_path, monkeypatch):
    values = iter([0.5, 0.2, 0.9])
    monkeypatch.setattr(MetaTraining, "validate", lambda _: next(values))
    settings = config(iterations=30, validate=10)
    kept = train(settings, tmp_path / "run").load()
    values = iter([0.5, 0.2, 0.9])
    fit = in_memory(settings)
    while fit.iteration < 20:
        fit.advance()
    state = fit.objective.learner.state_dict()
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in state.items())


@pytest.mark.parametrize("batch", [-1, 0])
def test_an_evaluation_takes_at_least_one_task_at_a_time(batch):
    settings = config(iterations=3)
    with pytest.raises(UsageError, match=f"batch: {batch} is not allowed; must be at least 1"):
        evaluate(build(settings), settings.problem, tasks=3, batch=batch)


@pytest.mark.slow
@pytest.mark.parametrize(("shots", "bound"), [(5, 0.20), (10, 0.045), (20, 0.012)])
def test_pamela_reaches_its_error_on_waves_and_no_task_runs_away(shots, bound):
    """The paper's experiment at full length: minutes for each number of shots."""
    settings = Config.from_dict({"problem": {"name": "sine", "shots": shots}, "method": {"name": "pamela"}})
    errors = evaluate(trained(settings), settings.problem, tasks=10_000).values[:, -1]
    assert errors.mean() < bound
    assert errors.max() < 100
