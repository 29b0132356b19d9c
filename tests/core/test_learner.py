"""`MetaLearner` from its user's point of view."""

from __future__ import annotations

import copy
import io
import os
from multiprocessing import get_context

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from pathaware import (
    Episodes,
    GradientDescent,
    Layout,
    MetaLearner,
    MetaSGD,
    Pamela,
    Reptile,
    UsageError,
)
from pathaware.methods import METHODS
from pathaware.methods.alfa import Alfa
from pathaware.methods.maml_plus_plus import MamlPlusPlus
from pathaware.methods.metal import TaskAdaptiveLoss
from pathaware.models import mlp
from tests.conftest import distance, meta_gradient, regression_episodes, small_problem


def test_adapt_returns_an_independent_model_at_the_end_of_the_path():
    model, loss, episodes = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.1), loss)
    before = learner.rule.layout.flatten(model).clone()
    adapted = learner.adapt(episodes.support_x[1], episodes.support_y[1])
    path = learner.path(episodes.support_x, episodes.support_y)
    expected = learner.outputs_at(path.end, episodes.query_x)[1]
    assert type(adapted) is type(model)
    assert distance(adapted(episodes.query_x[1]), expected) < 1e-12
    assert torch.equal(learner.rule.layout.flatten(model), before)


def test_adaptation_keeps_no_graph():
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, Pamela(model), loss)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert len(path.points) == len(path.losses) == 6
    assert not any(t.requires_grad for t in (*path.points, *path.losses))


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("kind", [Pamela, TaskAdaptiveLoss])
def test_tasks_adapt_in_inference_mode(execution, kind):
    """As in validation loops, with inputs from inside or outside of it."""
    model, _, episodes = small_problem("mlp")
    learner = MetaLearner(model, kind(model), F.smooth_l1_loss, execution=execution)
    support, queries = episodes.tensors()[:2], episodes.query_x

    def results() -> list[Tensor]:
        x, y = support
        losses = [learner.adapted_losses(episodes, order).mean() for order in ("second", "none")]
        outputs = learner.predictions_per_step(x, y, queries).outputs
        return [*losses, *outputs, learner.adapt(x[0], y[0])(queries[0])]

    with torch.no_grad():
        expected = results()
    for change in (lambda tensor: tensor, torch.clone):
        with torch.inference_mode():
            support = [change(tensor) for tensor in support]
            found = results()
        assert all(distance(a, b) < 1e-12 for a, b in zip(found, expected, strict=True))


def test_the_learners_parameters_are_initialisation_and_rule_and_any_optimiser_trains_them():
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, Pamela(model, rate=0.1, q_start=0.5), loss)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.01)
    first = learner.meta_loss(episodes)
    for _ in range(20):
        optimizer.zero_grad()
        learner.meta_loss(episodes).backward()
        optimizer.step()
    assert learner.meta_loss(episodes) < first
    assert {name.split(".")[0] for name, _ in learner.named_parameters()} == {"model", "rule"}


def test_reptile_pulls_the_initialisation_towards_where_descent_on_all_data_ends():
    model = mlp(1, (6,), 1)
    episodes = regression_episodes(tasks=2)
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.1), F.mse_loss)
    learner.zero_grad()
    Reptile().backward(learner, episodes, 1 / len(episodes))
    ends = []
    for sx, sy, qx, qy in zip(*episodes.tensors(), strict=True):
        copy = mlp(1, (6,), 1)
        copy.load_state_dict(model.state_dict())
        x, y = torch.cat([sx, qx]), torch.cat([sy, qy])
        for rows in torch.arange(len(x)).split(len(x) // 3)[:3]:
            grads = torch.autograd.grad(F.mse_loss(copy(x[rows]), y[rows]), list(copy.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(copy.parameters(), grads, strict=True):
                    parameter.sub_(0.1 * grad)
        ends.append(torch.cat([p.detach().flatten() for p in copy.parameters()]))
    initial = torch.cat([p.detach().flatten() for p in model.parameters()])
    pull = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(pull, initial - torch.stack(ends).mean(0)) < 1e-12


def test_reptile_refuses_a_rule_that_learns():
    model, loss, episodes = small_problem("mlp")
    with pytest.raises(UsageError, match="Reptile learns an initialisation only"):
        Reptile().backward(MetaLearner(model, Pamela(model), loss), episodes, 1.0)


def test_running_statistics_are_refused_with_a_remedy():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(
        UsageError, match=r"model: 1 keeps running statistics.*replace_all_batch_norm_modules_"
    ):
        MetaLearner(model, GradientDescent(model), F.mse_loss)


def test_the_meta_gradient_does_not_depend_on_what_was_adapted_before():
    model, loss, episodes = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 2, rate=0.1), loss)
    first = meta_gradient(learner, episodes)
    learner.adapt(episodes.support_x[0], episodes.support_y[0])
    assert torch.equal(meta_gradient(learner, episodes), first)


@pytest.mark.parametrize("kind", [GradientDescent, MetaSGD, Pamela, Alfa, MamlPlusPlus])
def test_a_step_size_is_any_number_that_is_not_negative(kind):
    model = mlp(1, (4,), 1)
    x = torch.randn(5, 1)
    start = {"q_start": 1} if kind is Pamela else {}
    for rate in (0, 1):
        MetaLearner(model, kind(model, 2, rate=rate, **start), F.mse_loss).adapt(x, x)
    for rate in (-1, -0.5, float("nan")):
        with pytest.raises(UsageError, match=f"rate: {rate} is not allowed; must be at least 0"):
            kind(model, 2, rate=rate)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 5, 1), (2, 4, 1), (2, 3, 1), (2, 3, 1)), "support set: inputs and targets must"),
        (((2, 5, 1), (2, 5, 1), (2, 3, 1), (2, 2, 1)), "query set: inputs and targets must"),
        (((2, 0, 1), (2, 0, 1), (2, 3, 1), (2, 3, 1)), "support set: it is empty"),
        (((2, 5, 1), (2, 5, 1), (2, 0, 1), (2, 0, 1)), "query set: it is empty"),
        (((5,), (5,), (5,), (5,)), "support set: inputs and targets need an axis of tasks"),
        (((), (), (), ()), "support set: inputs and targets need an axis of tasks"),
        (((2, 1), (2, 1), (3, 1), (3, 1)), "must share their task axis"),
    ],
)
def test_episodes_that_do_not_fit_together_are_refused(shapes, message):
    with pytest.raises(UsageError, match=message):
        Episodes(*map(torch.zeros, shapes))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(5, 1), torch.zeros(4, 1), r"tasks and examples, got \[1, 5\] and \[1, 4\]"),
        (torch.zeros(0, 1), torch.zeros(0, 1), "support set: it is empty"),
        (torch.tensor(1.0), torch.tensor(1.0), "need an axis of tasks and one of examples"),
        (torch.full((5, 1), torch.nan), torch.zeros(5, 1), "the loss before adaptation is not finite"),
        (torch.full((5, 1), torch.inf), torch.zeros(5, 1), "the loss before adaptation is not finite"),
    ],
)
def test_a_support_set_that_cannot_be_adapted_to_is_refused(x, y, message):
    model = mlp(1, (4,), 1)
    learner = MetaLearner(model, GradientDescent(model, 2), F.mse_loss)
    with pytest.raises(UsageError, match=message):
        learner.adapt(x.double(), y.double())


def test_a_rule_of_another_network_is_refused():
    model, wider, deeper = mlp(1, (4,), 1), mlp(1, (5,), 1), mlp(1, (4, 4), 1)
    with pytest.raises(UsageError, match=r"rule: it was built for another network; .* has shape \[4, 1\]"):
        MetaLearner(model, Pamela(wider), F.mse_loss)
    with pytest.raises(UsageError, match="rule: it was built for another network"):
        MetaLearner(model, Pamela(deeper), F.mse_loss)


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_labels_and_losses_that_cannot_be_used_are_refused(execution):
    model = mlp(2, (4,), 3)
    rule = GradientDescent(model, 2)
    x, y = torch.randn(6, 2), torch.arange(6) % 3
    learner = MetaLearner(model, rule, F.cross_entropy, execution=execution)
    with pytest.raises(UsageError, match=r"labels must be of dtype torch\.long, not torch\.int32"):
        learner.adapt(x, y.int())
    each = MetaLearner(model, rule, nn.CrossEntropyLoss(reduction="none"), execution=execution)
    with pytest.raises(UsageError, match=r"one number per task, not a tensor of shape \[6\]"):
        each.adapt(x, y)


@pytest.mark.parametrize("kind", ["loop", "vmap", "batched", "prototypical", "relation", "r2d2"])
@pytest.mark.parametrize("given", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_labels_that_no_output_has_are_refused(kind, given):
    """Such as labels that begin at one. Heads that compare labels would ignore the last class."""
    model = mlp(2, (4,), 3)
    if kind in METHODS:
        learner = METHODS[kind].build(model, {}, given)
    else:
        learner = MetaLearner(model, GradientDescent(model, 2), given, execution=kind)
    x, y = torch.randn(1, 6, 2), torch.arange(6)[None] % 3
    message = "targets: with 3 outputs, labels must be 0 to 2, got 1 to 3"
    for ask in (
        lambda: learner.adapt(x[0], y[0] + 1),
        lambda: learner.meta_loss(Episodes(x, y, x, y + 1)),
    ):
        with pytest.raises(UsageError, match=message):
            ask()


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_targets_of_the_cross_entropy_may_be_probabilities(execution):
    model = mlp(2, (4,), 3)
    learner = MetaLearner(model, GradientDescent(model, 2), F.cross_entropy, execution=execution)
    x, y = torch.randn(2, 6, 2), torch.randn(2, 6, 3).softmax(-1)
    point = learner.rule.layout.flatten(model).expand(2, -1)
    expected = torch.stack([F.cross_entropy(model(one), targets) for one, targets in zip(x, y, strict=True)])
    assert distance(learner.losses_at(point, x, y), expected) < 1e-12
    hard = torch.arange(6).expand(2, -1) % 3
    same = (Episodes(x, targets, x, targets) for targets in (hard, F.one_hot(hard, 3).to(x)))
    assert distance(*(meta_gradient(learner, episodes) for episodes in same)) < 1e-12
    with pytest.raises(UsageError, match=r"probabilities must have the shape .* \[6, 3\], not \[6\]"):
        learner.adapt(x[0], hard[0].double())


class Scaled(nn.Module):
    """Has a parameter that is a single number, without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(1, 1), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
def test_a_parameter_may_be_a_single_number(execution):
    model, episodes = Scaled(), regression_episodes()
    learner = MetaLearner(model, Pamela(model, 2), F.mse_loss, execution=execution, guard=False)
    learner.meta_loss(episodes).backward()
    assert model.scale.grad is not None
    x, y = episodes.support_x[0], episodes.support_y[0]
    adapted = learner.adapt(x, y, steps=1)
    (gradient,) = torch.autograd.grad(F.mse_loss(model(x), y), model.scale)
    assert adapted.scale.shape == ()
    assert torch.allclose(adapted.scale, model.scale - 0.01 * learner.rule.q.flatten()[0] * gradient)


class Several(nn.Module):
    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(1, 1)

    def forward(self, x: Tensor) -> object:
        outputs = self.linear(x)
        return {"logits": outputs} if self.kind is dict else (outputs, outputs)


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("kind", [dict, tuple])
def test_a_model_that_does_not_return_one_tensor_is_refused(execution, kind):
    model = Several(kind)
    learner = MetaLearner(model, GradientDescent(model, 1), F.mse_loss, execution=execution)
    with pytest.raises(UsageError, match=f"model: it must return one tensor, got {kind.__name__}"):
        learner.meta_loss(regression_episodes())


@pytest.mark.parametrize("convert", [np.asarray, Tensor.tolist], ids=["array", "list"])
def test_what_is_not_a_tensor_is_refused_by_name(convert):
    model = mlp(1, (4,), 1)
    learner = MetaLearner(model, GradientDescent(model, 1), F.mse_loss)
    x, y = torch.randn(5, 1), torch.randn(5, 1)
    point = learner.rule.layout.flatten(model)[None]
    message = "must be a tensor, got (ndarray|list); call torch.as_tensor"
    with torch.no_grad():
        for name, use in {
            "support_x": lambda: learner.adapt(convert(x), y),
            "support_y": lambda: learner.adapt(x, convert(y)),
            "query_x": lambda: learner.predictions_per_step(x[None], y[None], convert(x[None])),
            "x": lambda: learner.outputs_at(point, convert(x[None])),
            "query_y": lambda: Episodes(x[None], y[None], x[None], convert(y[None])),
        }.items():
            with pytest.raises(UsageError, match=f"^{name}: it {message}"):
                use()


def test_a_batch_that_is_no_batch_or_empty_is_refused():
    model = mlp(1, (4,), 3)
    learner = MetaLearner(model, GradientDescent(model, 1), F.cross_entropy)
    with pytest.raises(UsageError, match=r"^episodes: it must be an instance of Episodes, got Tensor"):
        learner.meta_loss(torch.randn(2, 3, 1))
    empty = torch.randn(0, 3, 1), torch.zeros(0, 3, dtype=torch.long)
    with pytest.raises(UsageError, match="support set: there is no task; at least one"):
        learner.meta_loss(Episodes(*empty, *empty))
    with pytest.raises(UsageError, match="support set: there is no task; at least one"):
        learner.predictions_per_step(*empty, empty[0])


def test_a_class_in_place_of_an_instance_is_refused():
    model = mlp(1, (4,), 1)
    with pytest.raises(UsageError, match=r"^rule: it must be an instance of Rule, got the class Pamela"):
        MetaLearner(model, Pamela, F.mse_loss)
    with pytest.raises(UsageError, match=r"^model: it must be an instance of Module, got function"):
        MetaLearner(mlp, Pamela(model), F.mse_loss)
    with pytest.raises(UsageError, match=r"^loss: MSELoss must be a function or an instance, such as nn\."):
        MetaLearner(model, Pamela(model), nn.MSELoss)
    with pytest.raises(UsageError, match=r"^loss: 'mse' must be a function or an instance"):
        MetaLearner(model, Pamela(model), "mse")


def test_a_lazy_layer_must_be_run_once_first():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    with pytest.raises(UsageError, match=r"^model: 0\.weight has no shape yet; run the model once first"):
        Pamela(model)
    model(torch.randn(2, 3))
    assert len(Pamela(model).layout) == 4 * 3 + 4 + 4 + 1


def test_the_rule_takes_the_dtype_of_the_parameters_that_adapt():
    """The default dtype of these tests is float64."""
    model = nn.Sequential(nn.Linear(1, 4).bfloat16(), nn.Linear(4, 1).float())
    rule = Pamela(Layout.of(model, lambda name: name.startswith("1.")), 2)
    coefficients, values = list(rule.parameters()), [p.clone() for p in rule.parameters()]
    learner = MetaLearner(model, rule, F.mse_loss)
    for parameter, coefficient, value in zip(learner.rule.parameters(), coefficients, values, strict=True):
        assert parameter is coefficient  # an optimiser may have it already
        assert torch.equal(parameter, value.float())
    whole = mlp(1, (4,), 1).float()
    learner = MetaLearner(whole, Pamela(whole), F.mse_loss)
    assert learner.meta_loss(regression_episodes().to(dtype=torch.float32)).dtype == torch.float32


def test_parameters_of_several_dtypes_adapt_only_if_they_are_the_same():
    """A point is one tensor. Before, the message was about the dtype of the inputs."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2).to(torch.bfloat16))
    with pytest.raises(
        UsageError, match=r"^model: .* one dtype, got torch.bfloat16 and torch.float64; .*Layo"
    ):
        MetaLearner(model, Pamela(model), F.mse_loss)
    MetaLearner(model, Pamela(Layout.of(model, lambda name: name.startswith("0"))), F.mse_loss)


def test_a_single_task_of_a_batch_is_a_batch_of_one():
    episodes = regression_episodes(3)
    for index in (1, -2, np.int64(1)):
        one = episodes[index]
        assert len(one) == 1
        assert torch.equal(one.query_x, episodes.query_x[1:2])
    assert [len(one) for one in episodes] == [1, 1, 1]
    assert torch.equal(torch.cat([one.support_y for one in episodes]), episodes.support_y)
    with pytest.raises(IndexError):
        episodes[3]
    assert len(episodes[torch.tensor([0, 2])]) == 2


def test_single_tasks_are_stacked_in_order_by_a_data_loader():
    tasks = [[torch.randn(count, 1) for count in (5, 5, 7, 7)] for _ in range(5)]
    batches = list(DataLoader(tasks, batch_size=3, collate_fn=Episodes.stack))
    assert [len(batch) for batch in batches] == [3, 2]
    for found, expected in zip([*batches[0], *batches[1]], tasks, strict=True):
        pairs = zip(found.tensors(), expected, strict=True)
        assert all(torch.equal(stacked[0], one) for stacked, one in pairs)


def saved_and_loaded(value: MetaLearner) -> MetaLearner:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    loaded: MetaLearner = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded])  # which pickles it
def test_a_copy_computes_the_same_and_is_independent(copied, execution):
    model, loss, episodes = small_problem("conv")
    learner = MetaLearner(model, Pamela(model, 2), loss, execution=execution)
    expected = meta_gradient(learner, episodes)
    twin = copied(learner)
    assert torch.equal(meta_gradient(twin, episodes), expected)
    assert twin.execution.name == execution
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.1)
    assert torch.equal(meta_gradient(learner, episodes), expected)
    assert distance(meta_gradient(twin, episodes), expected) > 1e-3


def _compare_in_distributed_data_parallel(folder: str) -> None:
    """Ends the process without destroying its group, which can wait forever for a thread of gloo."""
    torch.set_default_dtype(torch.float64)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    for execution in ("loop", "vmap", "batched"):
        torch.manual_seed(0)
        model, loss, episodes = small_problem("conv")
        learner = MetaLearner(model, Pamela(model, 3), loss, execution=execution)
        expected = meta_gradient(learner, episodes)
        learner.zero_grad()
        parallel = DistributedDataParallel(learner)
        with torch.no_grad():
            same = torch.equal(parallel(episodes), learner.query_loss(episodes))
        parallel(episodes).backward()
        found = torch.cat([p.grad.flatten() for p in learner.parameters()])
        if not same or not distance(found, expected) < 1e-12:
            os._exit(1)
    os._exit(0)


def test_a_learner_in_distributed_data_parallel_has_its_meta_gradient(tmp_path):
    """With one process; PyTorch's hooks for the gradients of several are the same."""
    compare = _compare_in_distributed_data_parallel
    process = get_context("spawn").Process(target=compare, args=(str(tmp_path),))
    process.start()
    process.join(120)
    assert process.exitcode == 0


def test_a_data_loader_pins_all_tensors_of_episodes(monkeypatch):
    """Marked instead of pinned, which needs an accelerator."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor + 1)
    parts = [torch.zeros(2, n, 1) for n in (5, 5, 7, 7)]
    pinned = pin_memory(Episodes(*parts, query_images=torch.zeros(2, 7), query_boxes=torch.zeros(2, 7, 4)))
    tensors = [value for value in vars(pinned).values() if isinstance(value, Tensor)]
    assert len(tensors) == 6
    assert all(tensor.eq(1).all() for tensor in tensors)


def test_labels_that_all_tasks_share_are_pinned_as_a_copy(monkeypatch):
    """PyTorch cannot copy to pinned memory what is expanded."""
    given = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: given.append(tensor) or tensor)
    x, y = torch.randn(2, 3, 1), torch.arange(3).expand(2, 3)
    Episodes(x, y, x, y).pin_memory()
    assert [tensor.is_contiguous() for tensor in given] == [True] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_episodes_of_a_data_loader_are_in_pinned_memory():
    tasks = [tuple(torch.randn(n, 1) for n in (5, 5, 7, 7))] * 4
    for batch in DataLoader(tasks, batch_size=2, collate_fn=Episodes.stack, pin_memory=True):
        assert all(tensor.is_pinned() for tensor in batch.tensors())
        assert torch.equal(batch.to("cuda", non_blocking=True).query_x.cpu(), batch.query_x)


def test_tasks_that_cannot_be_stacked_are_refused():
    task, larger = ([torch.randn(count, 1) for count in (n, n, 7, 7)] for n in (5, 6))
    message = r"tasks: support_x has shapes \[5, 1\] and \[6, 1\]; tasks of one batch must have equal sizes"
    with pytest.raises(UsageError, match=message):
        Episodes.stack([task, larger])
    with pytest.raises(UsageError, match="support_x, support_y, query_x, query_y, got 2 values"):
        Episodes.stack([task[:2]])
    with pytest.raises(UsageError, match="support_x: it must be a tensor, got ndarray"):
        Episodes.stack([[t.numpy() for t in task]])
    with pytest.raises(UsageError, match="no task"):
        Episodes.stack([])
