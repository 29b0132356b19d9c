"""Meta-gradients equal finite differences, and methods are MAML in the limits that their papers name.

Methods that hold a part of the path constant have tests of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathaware import Episodes, Layout, MetaLearner, Unrolled, UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.rule import Context
from pathaware.methods import METHODS, GradientDescent, get_method
from tests.conftest import distance
from tests.methods.checks import differences, error_of_meta_gradient, estimated, learner_of, scattered

MATRICES = ("full", "diagonal")
STEPPING = {"rate": 0.1, "steps": 3}
SMALL_MEMORY = {"slots": 5, "size": 4, "hidden": 6}
KINDS = ("conv", "mlp")
EXACT = [
    *(("anil", STEPPING), ("boil", STEPPING), ("gap", {"rate": 0.1, "steps": 2})),
    *(("alfa", {**STEPPING, "guard": False}), ("l2f", {**STEPPING, "guard": False})),
    ("maml++", {**STEPPING, "multi_step_loss": False}),
    *(("meta-curvature", {"matrices": matrices, "rate": 0.1, "steps": 2}) for matrices in MATRICES),
    *(("r2d2", {"penalty": 0.3}), ("lr-d2", {"penalty": 0.3, "steps": 1})),
    ("lr-d2", {"penalty": 0.3, "steps": 4}),
    *(("prototypical", {}), ("siamese", {}), ("relation", {}), ("proto-pamela", {})),
    ("proto-pamela", {"adaptive": True, "power": 0.7, "anchors": 3}),
    *(("matching", {"full_context": full, "reads": 2}) for full in (False, True)),
    *(("lstm", {"hidden": 6}), ("lstm", {"hidden": 6, "layers": 2, "label": "after"})),
    ("mann", SMALL_MEMORY),
]
SHARED = ("log_penalty", "alpha", "beta")
NUMBERS = {"r2d2": SHARED, "lr-d2": SHARED, "matching": ("log_sharpness",)}
"""Single learned numbers of heads."""


@pytest.mark.parametrize(
    ("name", "settings", "kind"),
    [
        (*each, kind)
        for each in EXACT
        for kind in ("conv", "mlp")
        if kind == "conv" or METHODS[each[0]].regression
    ],
)
def test_a_meta_gradient_equals_finite_differences(name, settings, kind):
    torch.manual_seed(1)  # with 0 a kink of a ReLU lies within the differences' step
    learner, outer, episodes = learner_of(name, kind, **settings)
    if settings.get("adaptive"):
        labels = torch.arange(5).repeat_interleave(20)
        learner.head.observe(torch.randn(100, learner.head.features), labels)
    if name == "l2f":  # the attenuator's output depends on the task
        learner.rule.attenuator[0].weight.data.mul_(10)
    assert error_of_meta_gradient(scattered(learner), outer, episodes) < 1e-5
    for own in NUMBERS.get(name, ()):
        unseen = own == "beta" and kind == "conv"  # a softmax does not see what all classes share
        size = learner.head.get_parameter(own).grad.abs()
        assert size < 1e-12 if unseen else size > 1e-4, own


def held_gradients(learner: MetaLearner, episodes: Episodes, first: int) -> Callable[[], Tensor]:
    """The mean query loss after the steps `first` … n as a function of the parameters, with inner gradients
    and losses held constant. Written as a loop over steps, without the estimator."""
    x, y, query_x, query_y = episodes.tensors()
    held: list[tuple[Tensor, Tensor]] = []

    def value() -> Tensor:
        point = learner.rule.layout.flatten(learner.model).expand(len(x), -1)
        _, memory = learner.rule.begin(point, Context(learner, x, y))
        losses = []
        for j in range(learner.rule.steps):
            if j == len(held):
                held.append(learner.gradient_at(point, x, y))
            loss, gradient = held[j]
            point, memory = learner.rule.advance(j, [point], gradient, loss, memory)
            if j + 1 >= first:
                losses.append(learner.losses_at(point, query_x, query_y).mean())
        return torch.stack(losses).mean()

    value()
    return value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "settings", "first"),
    [
        ("l2l", {"steps": 3, "scale": 0.1, "trajectory": True}, 1),
        ("l2l", {"steps": 3, "scale": 0.1, "trajectory": False}, 3),
        ("meta-lstm", {"steps": 2, "rate": 0.1}, 2),
    ],
)
def test_a_learned_optimiser_equals_finite_differences_where_gradients_are_held(name, settings, first, kind):
    learner, outer, episodes = learner_of(name, kind, hidden=3, guard=False, **settings)
    scattered(learner, 0.3)
    found = estimated(learner, outer, episodes)
    gradients, chosen = differences(learner, held_gradients(learner, episodes, first), most=120)
    sizes = [(own.startswith("rule."), p.numel()) for own, p in learner.named_parameters()]
    of_rule = torch.cat([torch.full((n,), rule) for rule, n in sizes])[chosen]
    for part in (of_rule, ~of_rule):
        assert gradients[part].norm() > 1e-3
        assert distance(found[chosen][part], gradients[part]) < 1e-6


def _forgetting_nothing(learner: FewShotLearner) -> None:
    nn.init.zeros_(learner.rule.attenuator[-1].weight)
    nn.init.constant_(learner.rule.attenuator[-1].bias, 50.0)


def _with_open_gates(learner: FewShotLearner) -> None:
    nn.init.zeros_(learner.rule.gates.weight)
    nn.init.constant_(learner.rule.gates.bias, math.inf)


def _as_it_starts(learner: FewShotLearner) -> None:
    pass


PLAIN = {"learned_rates": False, "per_step_norm": False, "multi_step_loss": False}
LIMITS: list[tuple[str, dict[str, object], Callable[[FewShotLearner], None]]] = [
    ("alfa", {"decay": 0.0}, _as_it_starts),
    ("metal", {}, _as_it_starts),
    ("gap", {"exact": False}, _as_it_starts),
    ("gap", {"exact": True}, _as_it_starts),
    *(("meta-curvature", {"matrices": matrices}, _as_it_starts) for matrices in MATRICES),
    ("maml++", PLAIN, _as_it_starts),
    ("l-maml", {"curvature_weight": 0.0}, _as_it_starts),
    ("hsml", {"size": 8, "clusters": 3, "groups": 2}, _with_open_gates),
    ("l2f", {}, _forgetting_nothing),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "settings", "limit"), LIMITS)
def test_in_a_limit_it_is_maml(name, settings, limit, kind):
    learner, outer, episodes = learner_of(name, kind, **STEPPING, **settings)
    limit(learner)
    rule = GradientDescent(learner.rule.layout, 3, rate=0.1)
    expected = estimated(MetaLearner(learner.model, rule, learner.loss), Unrolled(), episodes)
    found = estimated(learner, outer if name == "l-maml" else Unrolled(), episodes)
    assert distance(found[: len(expected)], expected) < 1e-10
    if name in ("gap", "meta-curvature"):
        assert found[len(expected) :].norm() > 0  # and it can learn to be something else


@pytest.mark.parametrize(("name", "head"), [("anil", True), ("boil", False)])
def test_a_part_adapts_as_in_maml_where_the_gradient_of_the_rest_is_zero(name, head):
    learner, outer, episodes = learner_of(name, rate=0.1, steps=2)

    class InPart(GradientDescent):
        def step(self, j, points, gradient):
            kept = [
                torch.full((e.numel,), float(e.name.startswith("head") == head)) for e in self.layout.entries
            ]
            return points[-1] - self.rate * torch.cat(kept) * gradient

    whole = MetaLearner(learner.model, InPart(Layout.of(learner.model), 2, rate=0.1), learner.loss)
    assert distance(estimated(learner, outer, episodes), estimated(whole, Unrolled(), episodes)) < 1e-10


BODY = {"conv1", "norm1", "conv2", "norm2"}


@pytest.mark.parametrize(("name", "adapted"), [("anil", {"head"}), ("boil", BODY)])
def test_the_other_part_is_the_same_for_all_tasks(name, adapted):
    learner, _, episodes = learner_of(name, rate=0.1)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert {parameter.split(".")[0] for parameter in path.parameters(-1)} == adapted
    assert not torch.equal(path.end[0], path.end[1])


OWN_GRADIENTS = [
    *(("maml++", {}), ("l-maml", {"curvature_weight": 5.0})),
    *(("warp-grad", {"start": start}) for start in ("query", "pull", "maml")),
]


@pytest.mark.parametrize(("name", "settings"), OWN_GRADIENTS)
def test_the_losses_that_are_returned_are_those_of_the_queries_at_the_end(name, settings):
    learner, outer, episodes = learner_of(name, rate=0.1, **settings)
    losses = outer.backward(scattered(learner), episodes, 1.0)
    assert not losses.requires_grad
    assert torch.allclose(losses, learner.adapted_losses(episodes, "none"), atol=1e-12)


WRONG = {
    "alfa": [{"decay": -0.1}],
    "hsml": [{"size": 0}, {"groups": 0}, {"sigma": 0.0}, {"gate": 1.0}, {"reconstruction": -1.0}],
    "imaml": [{"rate": -0.1}, {"strength": 0.0}, {"cg_steps": 0}, {"damping": -1.0}],
    "imaml-hf": [{"strength": 0.0}, {"cg_steps": 0}],
    "l-maml": [{"curvature_weight": -1.0}, {"prior_precision": 0.0}, {"directions": 0}],
    "l2l": [{"scale": 0.0}, {"hidden": 0}, {"layers": 0}, {"initialisation": "zero"}],
    "lr-d2": [{"steps": 0}],
    "lstm": [{"hidden": 0}, {"layers": 0}, {"label": "never"}],
    "maml++": [{"multi_step_share": 1.5}, {"first_order_share": -0.1}, {"rate": -0.1}],
    "mann": [{"slots": 0}, {"size": 0}, {"hidden": 0}, {"decay": 1.5}, {"decay": -0.1}, {"gain": -1.0}],
    "matching": [{"sharpness": 0.0}, {"reads": 0}],
    "meta-curvature": [{"matrices": "square"}],
    "meta-lstm": [{"rate": 0.0}, {"rate": 1.0}, {"keep": 1.5}, {"hidden": 0}],
    "meta-networks": [{"hidden": 0}, {"generator": 0}, {"sharpness": 0.0}],
    "mt-net": [{"probability": 0.0}, {"probability": 1.0}, {"temperature": 0.0}, {"steps": 0}],
    "proto-pamela": [
        *({"power": 0.0}, {"anchors": 3}, {"steps": -1}, {"skip": 0}),
        *({"rate": 0.0}, {"scale": -1.0}, {"shrinkage": 0.0}),
    ],
    "r2d2": [{"penalty": 0.0}, {"scale": 0.0}],
    "relation": [{"hidden": 0}],
    "reptile": [{"train_steps": 0}],
    "warp-grad": [{"kernel": 0}, {"kernel": 2}, {"start": "leap"}, {"steps": 0}],
}


@pytest.mark.parametrize(("name", "wrong"), [(name, each) for name, all in WRONG.items() for each in all])
def test_settings_that_make_no_sense_are_refused_by_name(name, wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        learner_of(name, **wrong)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("mt-net", nn.Sequential(nn.BatchNorm1d(3))),
        ("warp-grad", nn.Sequential(nn.Linear(1, 1))),
        ("warp-grad", nn.Linear(1, 1)),
    ],
)
def test_a_network_without_the_layers_that_a_method_needs_is_refused(name, network):
    with pytest.raises(UsageError, match="model"):
        get_method(name).build(network, {}, nn.functional.mse_loss)
