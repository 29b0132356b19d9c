"""Meta-gradients against independent references: finite differences and `higher`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import Episodes, GradientDescent, MetaLearner, Unrolled, UsageError
from pathaware.methods import METHODS
from tests.conftest import RULES, distance, image_episodes, meta_gradient, scatter, slope_error, small_problem

EXECUTIONS = ("loop", "vmap", "batched", "batched, by autograd")


def learner_by(execution: str, model, rule, loss) -> MetaLearner:
    """`batched` has hand-written derivatives on a CPU; `by autograd` is how it runs elsewhere."""
    learner = MetaLearner(model, rule, loss, execution=execution.partition(",")[0])
    assert (learner.execution.program is not None) == execution.startswith("batched")
    if execution.endswith("autograd"):
        learner.execution.program = None
    return learner


# Each network in one execution only, to save time; another test compares the executions.
@pytest.mark.parametrize(("kind", "execution"), [("mlp", "loop"), ("conv", "batched")])
@pytest.mark.parametrize("rule", RULES)
def test_meta_gradient_of_initialisation_and_rule_equals_finite_differences(kind, rule, execution):
    model, loss, episodes = small_problem(kind)
    learner = scatter(learner_by(execution, model, RULES[rule](model), loss))
    parameters = [parameter for parameter in learner.parameters() if parameter.numel()]
    for _ in range(10):  # directions
        gradients = torch.autograd.grad(learner.meta_loss(episodes), parameters)
        assert slope_error(lambda: learner.query_loss(episodes), parameters, gradients) < 1e-6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.parametrize("order", ["second", "first"])
def test_all_executions_agree(kind, rule, order):
    model, loss, episodes = small_problem(kind)
    rule = RULES[rule](model)
    learners = [learner_by(execution, model, rule, loss) for execution in EXECUTIONS]
    scatter(learners[0])  # they share the rule
    first, *others = (meta_gradient(learner, episodes, order) for learner in learners)
    assert all(distance(gradient, first) < 1e-10 for gradient in others)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_maml_equals_higher(kind, steps):
    import higher

    model, loss, episodes = small_problem(kind)
    learner = MetaLearner(model, GradientDescent(model, steps, rate=0.05), loss)
    ours = meta_gradient(learner, episodes)

    model.zero_grad()
    for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with higher.innerloop_ctx(model, optimizer, copy_initial_weights=False) as (fast, descend):
            for _ in range(steps):
                descend.step(loss(fast(support_x), support_y))
            (loss(fast(query_x), query_y) / len(episodes)).backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(ours, theirs) < 1e-10


def test_first_order_equals_the_query_gradient_at_the_end_of_the_path():
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.05), loss)
    path = learner.path(episodes.support_x, episodes.support_y)
    _, gradients = learner.gradient_at(path.end, episodes.query_x, episodes.query_y)
    assert distance(meta_gradient(learner, episodes, "first"), gradients.mean(0)) < 1e-12


@pytest.mark.parametrize(("kind", "execution"), [("mlp", "vmap"), ("conv", "batched")])
def test_checkpointing_inner_steps_changes_no_gradient(kind, execution):
    model, loss, episodes = small_problem(kind)
    rule = RULES["pamela"](model)
    plain, saving = (MetaLearner(model, rule, loss, checkpoint=c, execution=execution) for c in (False, True))
    assert torch.equal(meta_gradient(saving, episodes), meta_gradient(plain, episodes))


def test_checkpointing_keeps_less_memory_alive():
    """Bytes that the graph holds between forward and backward, with many examples per task."""

    def saved_bytes(checkpoint: bool) -> int:
        model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        learner = MetaLearner(model, GradientDescent(model, 5), F.mse_loss, checkpoint=checkpoint)
        episodes = Episodes(*(torch.randn(2, n, 1) for n in (200, 200, 5, 5)))
        held: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            learner.meta_loss(episodes)
        return sum(held.values())

    assert saved_bytes(True) < 0.3 * saved_bytes(False)


def test_running_the_wrong_number_of_classes_is_not_hidden_by_the_fallback():
    model, loss, _ = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 1), loss)
    with pytest.raises(UsageError, match="with 3 outputs, labels must be 0 to 2, got 0 to 5"):
        learner.meta_loss(image_episodes(ways=9))


def penalised(learner: MetaLearner, episodes: Episodes) -> torch.Tensor:
    """The meta-loss and half the square of its gradient."""
    loss = learner.meta_loss(episodes)
    gradients = torch.autograd.grad(loss, list(learner.parameters()), create_graph=True, allow_unused=True)
    return loss + sum(gradient.square().sum() for gradient in gradients if gradient is not None) / 2


@pytest.mark.parametrize("kind", ["mlp", "conv"])
@pytest.mark.parametrize("rule", RULES)
def test_a_penalty_on_the_meta_gradient_is_refused_and_not_ignored(kind, rule):
    """The loss has a derivative in any case, so that nothing else would show that the penalty's is lost."""
    model, loss, episodes = small_problem(kind)
    learner = scatter(MetaLearner(model, RULES[rule](model), loss))
    with pytest.raises(UsageError, match=r"cannot be differentiated again .* execution='loop'"):
        penalised(learner, episodes).backward()


def test_the_loop_differentiates_a_penalty_on_the_meta_gradient():
    model, loss, episodes = small_problem("mlp")
    learner = scatter(MetaLearner(model, RULES["pamela"](model), loss, execution="loop"))
    parameters = list(learner.parameters())
    gradients = torch.autograd.grad(penalised(learner, episodes), parameters)
    assert slope_error(lambda: penalised(learner, episodes), parameters, gradients) < 1e-5


def test_a_penalty_is_refused_by_heads_that_are_solved():
    model, loss, episodes = small_problem("conv")
    with pytest.raises(UsageError, match="cannot be differentiated again"):
        penalised(METHODS["r2d2"].build(model, {}, loss), episodes).backward()


def test_an_unknown_order_is_refused_and_not_taken_for_another():
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, GradientDescent(model, 2), loss)
    for ask in (
        lambda: learner.meta_loss(episodes, "2nd"),
        lambda: learner.adapted_losses(episodes, 2),
        lambda: learner.path(episodes.support_x, episodes.support_y, order="1st"),
    ):
        with pytest.raises(UsageError, match=r"order: .* must be one of second, first, none"):
            ask()
    with pytest.raises(UsageError, match="order: 'none' must be one of second, first"):
        Unrolled("none")
