"""Every method is a function, and its learner learns by the method's own meta-gradient."""

from __future__ import annotations

import copy
import inspect
import os
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from tools import stub
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import pathaware
from pathaware import Episodes, MetaLearner, Unrolled, UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.methods import FUNCTIONS, METHODS
from pathaware.methods.imaml import LineSearchDescent
from pathaware.methods.l2l import LearnedOptimizer
from pathaware.methods.maml_plus_plus import MamlPlusPlus
from pathaware.methods.reptile import ReptileDescent
from pathaware.methods.warp_grad import Warped
from pathaware_research.pages import method_pages
from tests.conftest import distance, small_problem
from tests.methods.checks import scattered

BY_NAME = {method.function_name: method for method in METHODS.values()}


def learner_and_tasks(name: str, **settings: object) -> tuple[FewShotLearner, Episodes]:
    """A learner built by the function, and tasks it can learn from."""
    model, loss, episodes = small_problem("conv")
    torch.manual_seed(3)
    learner = FUNCTIONS[name](model, loss, **settings).double()
    return scattered(learner, 0.01), replace(episodes, labelled=name != "umtra")


def gradients(learner: FewShotLearner) -> list[Tensor]:
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in learner.parameters()]
    learner.zero_grad()
    return found


def by_estimator(learner: FewShotLearner, episodes: Episodes) -> list[Tensor]:
    torch.manual_seed(5)
    learner.meta_gradient.backward(learner, episodes, 1 / len(episodes))
    return gradients(learner)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_ways_to_ask_give_the_gradient_of_the_estimator(name):
    learner, episodes = learner_and_tasks(name)
    expected = by_estimator(learner, episodes)
    assert any(g.any() for g in expected)
    torch.manual_seed(5)
    losses = learner.backward(episodes)
    assert losses.shape == (len(episodes),)
    assert all(map(torch.equal, gradients(learner), expected))
    torch.manual_seed(5)
    loss = learner.meta_loss(episodes)
    assert torch.allclose(loss, losses.mean())
    loss.backward()
    assert all(
        torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(gradients(learner), expected, strict=True)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_builds_what_the_command_line_builds(name):
    method, model, loss = BY_NAME[name], *small_problem("conv")[:2]
    torch.manual_seed(0)
    ours = FUNCTIONS[name](copy.deepcopy(model), loss)
    torch.manual_seed(0)
    theirs = method.build(copy.deepcopy(model), {}, loss)
    assert type(ours.meta_gradient) is type(theirs.meta_gradient)
    assert str(ours) == str(theirs)
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    settings = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    known = {"step_size" if n == "rate" else n: default for n, default in method.settings().items()}
    assert known.items() <= settings.items()
    assert all(p.annotation is not p.empty for p in parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_has_the_paper_the_equations_and_every_setting(name):
    function, method = getattr(pathaware, name), BY_NAME[name]
    text = inspect.getdoc(function)
    assert function.__name__ == name
    assert str(method.year) in text.splitlines()[0]
    assert re.search(r"^ {4}\S.*[=∝∇]", text, re.MULTILINE)
    for setting in method.settings():
        assert f"`{'step_size' if setting == 'rate' else setting}`" in text, setting


def test_a_setting_reaches_rule_and_meta_gradient():
    model, loss, _ = small_problem("mlp")
    learner = pathaware.imaml(model, loss, steps=7, step_size=0.3, strength=2.0, cg_steps=9, guard=False)
    assert (learner.rule.steps, learner.rule.rate, learner.rule.strength) == (7, 0.3, 2.0)
    assert (learner.meta_gradient.divisor, learner.meta_gradient.cg_steps, learner.guard) == (12.0, 9, False)
    with pytest.raises(TypeError, match="strenght"):
        pathaware.imaml(model, loss, strenght=2.0)


OWN = ["reptile", "imaml", "maml_plus_plus", "l2l", "pamela"]


@pytest.mark.parametrize("name", OWN)
def test_gradients_accumulate_over_batches_and_over_parts_of_one(name):
    learner, episodes = learner_and_tasks(name)
    first, second = episodes[:1], episodes[1:]
    expected = [
        a / 2 + b / 2
        for a, b in zip(by_estimator(learner, first), by_estimator(learner, second), strict=True)
    ]
    for part in (first, second):
        (learner.meta_loss(part) / 2).backward()
    assert all(map(torch.allclose, gradients(learner), expected))
    total = len(episodes)
    whole = by_estimator(learner, episodes)
    for part in (first, second):
        learner.backward(part, weight=1 / total)
    assert all(map(torch.allclose, gradients(learner), whole))


@pytest.mark.parametrize("name", OWN)
def test_a_gradient_scaler_and_autocast_give_the_unscaled_gradient(name):
    torch.set_default_dtype(torch.float32)
    model, loss, episodes = small_problem("conv")
    learner = FUNCTIONS[name](model, loss)
    scaler, optimizer = (
        torch.amp.GradScaler("cpu", init_scale=1024.0),
        torch.optim.SGD(learner.parameters(), 0.0),
    )
    with torch.autocast("cpu", torch.bfloat16):
        expected = by_estimator(learner, episodes)
        scaled = scaler.scale(learner.meta_loss(episodes))
    scaled.backward()
    scaler.unscale_(optimizer)
    assert distance(torch.cat([g.flatten() for g in gradients(learner)]),
                    torch.cat([g.flatten() for g in expected])) < 1e-6  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_gradients_the_loss_is_its_value_alone(name):
    learner, episodes = learner_and_tasks(name)
    episodes = replace(episodes, labelled=True)  # validation is on labelled tasks
    for parameter in learner.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(5)
    with torch.no_grad():
        value = learner.meta_loss(episodes)
    torch.manual_seed(5)
    assert torch.equal(learner.query_loss(episodes), value)
    assert not value.requires_grad
    assert all((parameter.grad == 1).all() for parameter in learner.parameters())


def test_a_computed_gradient_has_no_derivative():
    learner, episodes = learner_and_tasks("reptile")
    loss = learner.meta_loss(episodes)
    with pytest.raises(UsageError, match="no derivative"):
        torch.autograd.grad(loss, list(learner.parameters()), create_graph=True, allow_unused=True)


def test_the_gradient_that_was_there_stays_if_the_estimator_fails():
    learner, episodes = learner_and_tasks("reptile")
    learner.backward(episodes)
    before = [p.grad for p in learner.parameters()]
    learner.meta_gradient = METHODS["imaml"].meta_gradient()  # refuses a network that adapts in part
    next(learner.model.parameters()).requires_grad_(False)
    with pytest.raises(UsageError, match="implicit"):
        learner.meta_loss(episodes)
    assert all(p.grad is g for p, g in zip(learner.parameters(), before, strict=True))


def _compare_in_distributed_data_parallel(folder: str) -> None:
    """Ends the process without destroying its group, which can wait forever for a thread of gloo."""
    torch.set_default_dtype(torch.float64)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    for name in OWN:
        learner, episodes = learner_and_tasks(name)
        expected = by_estimator(learner, episodes)
        parallel = DistributedDataParallel(learner)
        for _ in range(2):
            parallel(episodes).backward()
            if not all(map(torch.equal, gradients(learner), expected)):
                os._exit(1)
    os._exit(0)


def test_distributed_data_parallel_gives_it_too(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=_compare_in_distributed_data_parallel, args=(str(tmp_path),)
    )
    process.start()
    process.join(120)
    assert process.exitcode == 0


@pytest.mark.parametrize("rule", [LineSearchDescent, MamlPlusPlus, LearnedOptimizer, ReptileDescent])
def test_a_rule_that_belongs_to_one_meta_gradient_brings_it(rule):
    model, loss, _ = small_problem("mlp")
    method = next(m for m in METHODS.values() if m.adapter is rule)
    assert type(MetaLearner(model, rule(model), loss).meta_gradient) is method.meta_gradient
    assert type(MetaLearner(model, rule(model), loss, meta_gradient=Unrolled()).meta_gradient) is Unrolled


def test_implicit_gradients_take_the_strength_of_their_rule():
    model, loss, _ = small_problem("mlp")
    learner = MetaLearner(model, LineSearchDescent(model, strength=3.0), loss)
    assert learner.meta_gradient.divisor == 3.0 + 10.0


def test_an_order_is_followed_for_another_release_with_a_warning():
    model, loss, episodes = small_problem("mlp")
    learner = pathaware.maml(model, loss)
    with pytest.warns(FutureWarning, match="query_loss"):
        assert torch.equal(learner.meta_loss(episodes, "none"), learner.query_loss(episodes))
    with pytest.warns(FutureWarning, match="Unrolled"):
        learner.meta_loss(episodes, "first").backward()
    found = gradients(learner)
    assert all(map(torch.equal, found, by_estimator(pathaware.fomaml(model, loss), episodes)))


def test_old_names_warn_for_another_release():
    model, loss, _ = small_problem("mlp")
    learner, method = pathaware.maml(model, loss), METHODS["maml"]
    for owner, old, new in [
        (pathaware, "Path", pathaware.Trajectory),
        (method, "kind", method.adapter),
        (method, "queries", method.transductive),
        (learner, "task_losses", learner.adapted_losses),
        (learner, "adapt_and_predict", learner.adapt_each),
        (learner, "gradient", learner.gradient_at),
        (learner, "losses", learner.losses_at),
    ]:
        with pytest.warns(FutureWarning, match=rf"{old} goes in 0\.4; use"):
            assert getattr(owner, old) == new


def test_labels_are_refused_where_a_method_learns_without():
    model, loss, episodes = small_problem("conv")
    learner = pathaware.umtra(model, loss)
    for learn in (learner.backward, learner.meta_loss):
        with pytest.raises(UsageError, match="without labels"):
            learn(episodes)


def test_warp_gradients_need_warp_layers():
    with pytest.raises(UsageError, match=r"warped\(network\)"):
        Warped(nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1)))


def test_schedules_follow_the_progress_of_training():
    model, loss, _ = small_problem("mlp")
    learner = pathaware.maml_plus_plus(model, loss)
    assert learner.meta_gradient.multi_step
    assert learner.progress(0.5)
    assert not learner.meta_gradient.multi_step


def test_the_stub_has_every_public_name_and_the_signature_of_every_method():
    assert list(pathaware.METHOD_FILES) == list(FUNCTIONS)
    for path, text in stub.stubs().items():
        assert path.read_text(encoding="utf-8") == text, "run `python -m tools.stub`"
    for name in pathaware.__all__:
        assert re.search(rf"^(from .* import {name} as|def {name}\()", stub.text(), re.MULTILINE), name
        assert getattr(pathaware, name).__name__ == name
    assert set(pathaware.__all__) <= set(dir(pathaware))
    assert len(pathaware.__all__) <= 50


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_four_lines_of_its_page_run(name):
    model, loss, episodes = small_problem("conv")
    episodes = replace(episodes, labelled=name != "umtra")
    known = {
        "pathaware": pathaware,
        "network": model,
        "loss": loss,
        "episodes": episodes,
        "optimizer": Mock(),
    }
    known |= {"support_x": episodes.support_x[0], "support_y": episodes.support_y[0]}
    exec(method_pages.example(BY_NAME[name]), known)
    assert len(known["losses"]) == len(episodes)
    assert isinstance(known["adapted"], nn.Module)
