"""One-line errors for tensors of a wrong dtype, device or shape, where PyTorch's own do not name them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import Episodes, GradientDescent, MetaLearner, UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.methods import get_method
from pathaware.models import conv4, mlp

KINDS = ("batched", "vmap", "loop", "mlp", "r2d2", "prototypical", "proto-pamela", "relation")
TASK = [torch.randn(5, 1, 8, 8), torch.arange(5) % 3, torch.randn(4, 1, 8, 8), torch.arange(4) % 3]


def learner_and_task(kind: str) -> tuple[FewShotLearner, list[Tensor]]:
    """A small learner in float32, and the support and query set of a task."""
    torch.set_default_dtype(torch.float32)
    task = [t.float() if t.is_floating_point() else t for t in TASK]
    if kind == "mlp":
        model = mlp(3, (8,), 3)
        return MetaLearner(model, GradientDescent(model, 2), F.cross_entropy), [
            *(task[0].flatten(1)[:, :3], task[1], task[2].flatten(1)[:, :3], task[3])
        ]
    model = conv4(3, size=8, channels=1, width=4, blocks=2)
    if kind in ("batched", "vmap", "loop"):
        return MetaLearner(model, GradientDescent(model, 2), F.cross_entropy, execution=kind), task
    return get_method(kind).build(model, {}, F.cross_entropy), task


def calls(learner: FewShotLearner, task: list[Tensor]) -> list[Callable[[], object]]:
    """Everything that a learner does with a support set and queries."""
    x, y, query_x, query_y = task
    return [
        lambda: learner.predictions_per_step(x[None], y[None], query_x[None]),
        lambda: learner.meta_loss(Episodes(x[None], y[None], query_x[None], query_y[None])),
    ]


WRONG: dict[str, tuple[int, Callable[[Tensor], Tensor], str]] = {
    "uint8 images": (0, lambda t: t.byte(), r"support_x: .* torch.float32 .*, got torch.uint8; call .to"),
    "float64": (0, lambda t: t.double(), r"support_x: .* torch.float32 .*, got torch.float64"),
    "float64 queries": (2, lambda t: t.double(), r"query_x: .* torch.float32 .*, got torch.float64"),
    "another shape": (2, lambda t: t.repeat_interleave(2, -1), r"query_x: .* those of support_x|inputs: the"),
    "float labels": (1, lambda t: t.float(), r"targets: .* must have .*shape.* \[5, 3\].* call .long"),
    "one-hot labels": (1, lambda t: F.one_hot(t, 3), r"must have shape \[5\], got \[5, 3\].* .argmax"),
    "a column of labels": (1, lambda t: t[:, None], r"must have shape \[5\], got \[5, 1\]"),
    "large labels": (1, lambda t: t + 2, "labels must be 0 to 2, got 2 to 4"),
    "empty support set": (0, lambda t: t[:0], "support set: "),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_tensor_is_named_with_what_was_expected(kind, wrong):
    learner, task = learner_and_task(kind)
    which, change, message = WRONG[wrong]
    task[which] = change(task[which])
    for call in calls(learner, task):
        with pytest.raises(UsageError, match=message):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_on_another_device_are_named(kind):
    """Without the check, hand-written programs compute something from tensors without data."""
    learner, task = learner_and_task(kind)
    names = ("support_x", "support_y", "query_x")
    for i, name in enumerate(names):
        given = [t.to("meta") if i == j else t for j, t in enumerate(task)]
        predict, learn = calls(learner, given)
        with pytest.raises(UsageError, match=rf"{name}: it must be on cpu like the network, got meta"):
            predict()
        with pytest.raises(UsageError, match=r"episodes: the four tensors must be on one device, got .*meta"):
            learn()
    with pytest.raises(UsageError, match="support_x: it must be on cpu"):
        calls(learner, [t.to("meta") for t in task])[1]()


@pytest.mark.parametrize("kind", ["r2d2", "prototypical", "relation"])
def test_negative_labels_are_refused_where_no_example_may_be_left_out(kind):
    learner, task = learner_and_task(kind)
    task[1] = task[1] - 1
    for call in calls(learner, task):
        with pytest.raises(UsageError, match="labels must be 0 to 2, got -1 to 1"):
            call()


@pytest.mark.parametrize("kind", KINDS)
def test_queries_of_other_tasks_are_refused(kind):
    learner, (x, y, query_x, _) = learner_and_task(kind)
    with pytest.raises(UsageError, match=r"query_x: it must have the shape \[1, Q, …\]"):
        learner.predictions_per_step(x[None], y[None], torch.stack([query_x, query_x]))


def test_regression_targets_of_another_dtype_are_named():
    torch.set_default_dtype(torch.float32)
    learner = MetaLearner(model := mlp(3, (8,), 2), GradientDescent(model, 2), F.mse_loss)
    x, y = torch.randn(5, 3), torch.randn(5, 2).double()
    with pytest.raises(UsageError, match=r"support_y: it must be of dtype torch\.float32"):
        learner.adapt(x, y)
    with pytest.raises(UsageError, match=r"support_y: it must be of dtype torch\.float32"):
        learner.meta_loss(Episodes(x[None], y[None], x[None], y[None]))


class Words(nn.Module):
    """A network whose inputs are integers, and that may fail for a reason of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.classify, self.broken = nn.Embedding(7, 4), nn.Linear(4, 3), False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken:
            raise RuntimeError("no connection")
        return self.classify(self.words(x).mean(1))


def test_integers_are_right_for_an_embedding_and_its_own_errors_stay_as_they_are():
    model = Words()
    learner = MetaLearner(model, GradientDescent(model, 2), F.cross_entropy, execution="loop")
    x, y = torch.randint(7, (5, 6)), torch.arange(5) % 3
    assert learner.adapt(x, y)(x).shape == (5, 3)
    model.broken = True
    with pytest.raises(RuntimeError, match="no connection"):
        learner.adapt(x, y)


def test_soft_labels_may_be_given_to_all_heads():
    for kind in ("r2d2", "prototypical", "proto-pamela"):
        learner, (x, y, query_x, _) = learner_and_task(kind)
        soft = F.one_hot(y, 3).float()
        hard, same = (learner.adapt(x, labels)(query_x) for labels in (y, soft))
        assert kind == "r2d2" or torch.allclose(hard, same, atol=1e-5)  # it takes them for values, unscaled


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loss: loss.item(), "loss: it must return a tensor, got float"),
        (lambda loss: loss.detach(), "loss: it has no gradient; compute it from the outputs"),
        (lambda loss: torch.tensor(loss.item()), "loss: it has no gradient"),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_refused(execution, change, message):
    model = mlp(3, (8,), 2)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return change(F.mse_loss(outputs, targets))

    learner = MetaLearner(model, GradientDescent(model, 2), loss, execution=execution)
    with pytest.raises(UsageError, match=message):
        learner.adapt(torch.randn(5, 3), torch.randn(5, 2))
