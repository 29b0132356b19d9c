"""Gradient norms along a path."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import MetaLearner, Pamela
from pathaware.core.learner import require_path
from pathaware.core.seeding import generator
from pathaware.models import mlp
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.problems import Sine
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from pathaware_research.paper.gradient_flow import (
    flow_figure,
    gradient_flow,
    of_trained,
    with_constant_skips,
)
from pathaware_research.studies import gradient_flow as gradient_flow_study
from tests.conftest import scatter

PROBLEM = Sine(shots=5, queries=6)


@pytest.fixture(autouse=True)
def _in_double_precision():
    """Derivatives are compared, for which single precision, as in the other tests here, is not enough."""
    torch.set_default_dtype(torch.float64)


def episodes(tasks: int):
    return PROBLEM.tasks("train", "cpu", torch.float64).sample(tasks, generator(0, "gradient flow"))


@pytest.mark.parametrize("guard", [False, True])
def test_the_norms_are_those_of_each_task_differentiated_by_itself(guard):
    model = mlp(1, (6, 6), 1)
    learner = scatter(
        MetaLearner(model, Pamela(model, 4, rate=0.1, q_start=0.5, skip=1), F.mse_loss, guard=guard)
    )
    flow = gradient_flow(learner, PROBLEM, "", tasks=5, batch=2)
    plain = MetaLearner(model, learner.rule, F.mse_loss, guard=guard, execution="loop")
    drawn = episodes(5)
    for task in range(5):
        one = drawn[task : task + 1]
        for n in range(1, 5):
            path = plain.path(one.support_x, one.support_y, steps=n, order="second")
            loss = plain.losses_at(plain.end(path), one.query_x, one.query_y)
            back = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            (g,) = torch.autograd.grad(loss, plain.end(path)) if not guard else (None,)
            assert flow.initial_norm[task, n - 1].item() == pytest.approx(
                torch.cat([b.flatten() for b in back]).norm().item()
            )
            assert flow.loss[task, n - 1].item() == pytest.approx(loss.item())
            if g is not None:
                assert flow.final_norm[task, n - 1].item() == pytest.approx(g.norm().item())


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_the_ratio_is_the_product_of_all_steps_for_constant_curvature(p):
    """One weight and a squared error: H = 2 mean(x²); a skip mixes in the derivative from two steps back."""
    model, rate, steps = nn.Linear(1, 1, bias=False), 0.01, 7
    learner = MetaLearner(model, Pamela(model, 2), F.mse_loss)
    (flow,) = with_constant_skips(learner, PROBLEM, rate=rate, steps=steps, skip=2, values=(p,), tasks=4)
    curvature = 2 * episodes(4).support_x.square().mean((1, 2))
    ways = [torch.ones(4)]
    for j in range(steps):
        through = (1 - rate * curvature) * ways[j]
        ways.append((1 - p) * through + p * ways[j - 2] if j >= 2 and j % 2 == 0 else through)
    assert torch.allclose(flow.ratio, torch.stack(ways[1:], dim=1).abs())


@pytest.fixture
def trained(tmp_path):
    settings = Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "pamela", "steps": 3}})
    run = Run.create(tmp_path / "run", settings)
    model = mlp(1, (6, 6), 1)
    return run, scatter(MetaLearner(model, Pamela(model, 3, skip=1), F.mse_loss))


def test_pamela_is_measured_with_and_without_skips_and_not_modified(trained):
    run, learner = trained
    before = learner.rule.p.clone()
    own, cut = of_trained([trained], tasks=3)
    assert torch.equal(learner.rule.p, before)
    assert not torch.allclose(own.ratio[:, -1], cut.ratio[:, -1])
    assert torch.equal(own.ratio[:, 0], cut.ratio[:, 0])  # the first step has nothing to skip
    with torch.no_grad():
        learner.rule.p.zero_()
    assert torch.equal(gradient_flow(learner, run.config.problem, "", tasks=3).initial_norm, cut.initial_norm)


def test_the_summary_is_json_and_the_figure_has_a_line_per_rule(trained):
    flows = of_trained([trained], tasks=3)
    summary = json.loads(json.dumps(flows[0].summary()))
    assert summary["tasks"] == 3
    assert summary["share"]["mean"] == pytest.approx(flows[0].ratio.mean(0).tolist())
    assert set(summary["start"]) == {"mean", "std", "q25", "median", "q75"}
    figure = flow_figure(flows, "three tasks")
    assert [len([c for c in ax.get_lines() if len(c.get_xdata()) == 3]) for ax in figure.axes] == [2, 2, 2]
    plt.close(figure)


def test_images_are_measured_one_task_at_a_time(monkeypatch):
    """The graph of ten steps on 84×84 pixels takes gigabytes per task."""
    problem = {"name": "classification", "data": "glyphs", "ways": 2, "shots": 1, "queries": 1, "width": 2}
    config = Config.from_dict({"problem": problem, "method": {"name": "maml", "steps": 1}})
    learner, sizes, path = build(config), [], MetaLearner.path

    def recorded(self, support_x, *rest, **options):
        sizes.append(len(support_x))
        return path(self, support_x, *rest, **options)

    monkeypatch.setattr(MetaLearner, "path", recorded)
    assert len(gradient_flow(learner, config.problem, "", tasks=3).loss) == 3
    assert sizes == [1, 1, 1]


def test_the_study_records_the_flow_of_trained_runs(tmp_path, monkeypatch):
    tables = {"problem": {"name": "sine"}, "method": {"name": "pamela", "steps": 3}}
    run = train(Config.from_dict({**tables, "training": {"iterations": 2}}), tmp_path / "run")
    target = tmp_path / "flow.json"
    arguments = ["gradient_flow", str(run.folder), "--tasks", "4", "--device", "cpu", "--json", str(target)]
    monkeypatch.setattr("sys.argv", arguments)
    gradient_flow_study.main()
    record = json.loads(target.read_text(encoding="utf-8"))
    measured, without = record["flow"]["trained"]
    expected = gradient_flow(require_path(run.load("cpu")), run.config.problem, "pamela", tasks=4)
    assert measured == expected.summary()
    assert without["label"] == "pamela, P set to 0"
    assert record["runs"]["pamela"]["steps"] == 3
