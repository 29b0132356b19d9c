"""What many tests share: small networks, episodes in float64, and a plain reference for gradients."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start: several tests run side by side

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined, so before anything imports them

import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import Episodes, GradientDescent, MetaLearner, MetaSGD, Pamela, Rule
from pathaware.core.batch_norm import freeze_running_statistics
from pathaware.models import conv4, mlp
from pathaware.models.traced import fold_biases

# A shell starts background jobs with Ctrl-C ignored, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

RULES: dict[str, Callable[[nn.Module], Rule]] = {
    "maml": lambda m: GradientDescent(m, 3, rate=0.05),
    "meta-sgd, one step": lambda m: MetaSGD(m, 1, rate=0.05),
    "meta-sgd, three steps": lambda m: MetaSGD(m, 3, rate=0.05),
    "pamela": lambda m: Pamela(m, 3, rate=0.1, q_start=0.5, skip=1),
    "pamela, tensor-channel Q, tensor P": lambda m: Pamela(
        m, 3, rate=0.1, q_start=0.5, skip=2, q_granularity="tensor-channel", p_granularity="tensor"
    ),
    "pamela, parameter Q": lambda m: Pamela(m, 3, rate=0.1, q_start=0.5, skip=2, q_granularity="parameter"),
    "pamela, one Q for all steps": lambda m: Pamela(m, 3, rate=0.1, q_start=0.5, skip=2, q="shared"),
    "pamela, Q without P": lambda m: Pamela(m, 3, rate=0.1, q_start=0.5, skip=None),
    "pamela, P without Q": lambda m: Pamela(m, 3, rate=0.1, q_start=0.5, skip=1, q="constant"),
}


@pytest.fixture(autouse=True, scope="session")
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Tests make their own glyphs and leave the data sets of whoever runs them alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHAWARE_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def _double_precision() -> object:
    """Meta-gradients are compared in float64: equivalent orders differ by 1e-3 in float32.

    What runs in float32 on a GPU is compared without TF32, which PyTorch uses for convolutions, and which a
    training may have left on.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_default_dtype(torch.float32)


def scatter(learner: MetaLearner, scale: float = 0.2) -> MetaLearner:
    """Move Φ away from its start, where P = 0 and equal Qs would hide mistakes."""
    with torch.no_grad():
        for parameter in learner.rule.parameters():
            parameter.add_(scale * torch.rand_like(parameter))
    return learner


def regression_episodes(tasks: int = 3) -> Episodes:
    return Episodes(*(torch.randn(tasks, n, 1) for n in (5, 5, 7, 7)))


def image_episodes(tasks: int = 2, ways: int = 3, size: int = 8) -> Episodes:
    def images(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % ways
        return torch.randn(tasks, count, 2, size, size), labels.expand(tasks, -1)

    return Episodes(*images(6), *images(9))


def small_problem(kind: str) -> tuple[nn.Module, object, Episodes]:
    """A network, its loss and episodes: the sine MLP, or a Conv-4 with adapted affine batch norm."""
    if kind == "mlp":
        return mlp(1, (6, 6), 1), F.mse_loss, regression_episodes()
    model = conv4(3, size=8, channels=2, width=3, blocks=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model, F.cross_entropy, image_episodes()


def with_constant_statistics(model: nn.Module) -> nn.Module:
    """Give every batch norm of a network constant statistics, in place."""
    freeze_running_statistics(model, all_norms=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(
            0.3 * torch.randn(buffer.shape) if name.endswith("mean") else 0.5 + torch.rand(buffer.shape)
        )
    return fold_biases(model)


def meta_gradient(learner: MetaLearner, episodes: Episodes, order: str = "second") -> Tensor:
    """The meta-gradient of θ₀ and Φ as one vector."""
    parameters = list(learner.parameters())
    grads = torch.autograd.grad(learner.adapted_losses(episodes, order).mean(), parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, grads, strict=True)]
    )


def slope_error(loss: Callable[[], Tensor], parameters: list[Tensor], gradients: Iterable[Tensor]) -> float:
    """The relative error of a gradient along a random direction, by central differences of the loss."""
    directions = [torch.randn_like(parameter) for parameter in parameters]
    slope = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))
    sides = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
        sides.append(loss().item())
    return abs((sides[0] - sides[1]) / 2e-6 - slope) / abs(slope)


def agrees_with_the_loop(model: nn.Module, loss: object, episodes: Episodes, rule: Rule) -> str:
    """The execution that `auto` chooses, whose meta-gradient must be that of the loop."""
    auto, loop = (MetaLearner(model, rule, loss, execution=name) for name in ("auto", "loop"))
    assert distance(meta_gradient(auto, episodes), meta_gradient(loop, episodes)) < 1e-10
    return auto.execution.name


def distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖"""
    return float((a - b).detach().norm() / b.detach().norm())
