# Made by `python -m tools.stub`.
from typing import Literal

from torch import nn

from pathaware.core.execution import ExecutionName
from pathaware.core.learner import HeadStart
from pathaware.core.losses import Loss
from pathaware.core.episodes import Episodes as Episodes
from pathaware.core.errors import UsageError as UsageError
from pathaware.core.head import Head as Head
from pathaware.core.head import HeadLearner as HeadLearner
from pathaware.core.learner import MetaLearner as MetaLearner
from pathaware.core.meta_gradient import MetaGradient as MetaGradient
from pathaware.core.meta_gradient import Unrolled as Unrolled
from pathaware.core.parameters import Layout as Layout
from pathaware.core.path import Path as Path
from pathaware.core.rule import Rule as Rule
from pathaware.inference.estimators import FewShotClassifier as FewShotClassifier
from pathaware.inference.estimators import FewShotRegressor as FewShotRegressor
from pathaware.inference.trained_model import TrainedModel as TrainedModel
from pathaware.methods.maml import GradientDescent as GradientDescent
from pathaware.methods.meta_sgd import MetaSGD as MetaSGD
from pathaware.methods.method import Method as Method
from pathaware.methods.pamela import Pamela as Pamela
from pathaware.methods.reptile import Reptile as Reptile
from pathaware.online.learner import OnlineLearner as OnlineLearner

__version__: str

def alfa(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    decay: float = 0.0005,
    adapt_norms: bool = False,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def anil(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def boil(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.1,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def fomaml(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def gap(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    exact: bool = False,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def hsml(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    size: int = 40,
    clusters: int = 4,
    groups: int = 2,
    sigma: float = 1.5,
    gate: float = 0.9,
    reconstruction: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def imaml(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 10,
    step_size: float = 0.01,
    strength: float = 0.5,
    cg_steps: int = 5,
    damping: float = 10.0,
    cg_damping: float = 1.0,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def imaml_hf(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 3,
    step_size: float = 0.01,
    strength: float = 0.5,
    cg_steps: int = 5,
    damping: float = 10.0,
    cg_damping: float = 1.0,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def l2f(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    adapt_norms: bool = False,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def l2l(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    hidden: int = 20,
    layers: int = 2,
    scale: float = 0.01,
    initialisation: Literal["learned", "random"] = "learned",
    trajectory: bool = True,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def l_maml(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    curvature_weight: float = 0.001,
    prior_precision: float = 1.0,
    directions: int | None = 5,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def lr_d2(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    penalty: float = 1.0,
    scale: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def lstm(
    network: nn.Module,
    loss: Loss,
    *,
    hidden: int = 200,
    layers: int = 1,
    label: Literal["with", "after"] = "with",
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def maml(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def maml_plus_plus(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    learned_rates: bool = True,
    per_step_norm: bool = True,
    multi_step_loss: bool = True,
    multi_step_share: float = 0.15,
    first_order_share: float = 0.0,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def mann(
    network: nn.Module,
    loss: Loss,
    *,
    slots: int = 128,
    size: int = 40,
    hidden: int = 200,
    decay: float = 0.99,
    gain: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def matching(
    network: nn.Module,
    loss: Loss,
    *,
    sharpness: float = 10.0,
    full_context: bool = False,
    reads: int = 5,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def meta_curvature(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    matrices: Literal["full", "diagonal"] = "full",
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def meta_lstm(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    keep: float = 0.995,
    hidden: int = 20,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def meta_networks(
    network: nn.Module,
    loss: Loss,
    *,
    hidden: int = 64,
    generator: int = 20,
    sharpness: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def meta_sgd(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 1,
    step_size: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def metal(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    transductive: bool = True,
    adapt_norms: bool = False,
    outer_support: bool = True,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def mt_net(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    probability: float = 0.5,
    temperature: float = 1.0,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def pamela(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    q_start: float = 1.0,
    p_start: float = 0.0,
    skip: int | None = 2,
    q: Literal["per-step", "shared", "constant"] = "per-step",
    q_granularity: Literal["model", "layer", "tensor", "filter", "tensor-channel", "parameter"] = "filter",
    p_granularity: Literal["model", "layer", "tensor", "filter", "tensor-channel", "parameter"] = "layer",
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def proto_pamela(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.1,
    skip: int | None = 2,
    scale: float = 10.0,
    shrinkage: float = 3.0,
    centring: float = 0.5,
    power: float = 1.0,
    adaptive: bool = False,
    anchors: int = 0,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def prototypical(
    network: nn.Module,
    loss: Loss,
    *,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def r2d2(
    network: nn.Module,
    loss: Loss,
    *,
    penalty: float = 0.1,
    scale: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def relation(
    network: nn.Module,
    loss: Loss,
    *,
    hidden: int = 8,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def reptile(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def siamese(
    network: nn.Module,
    loss: Loss,
    *,
    execution: ExecutionName = "auto",
) -> HeadLearner: ...
def umtra(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
def warp_grad(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    start: Literal["maml", "query", "pull"] = "maml",
    kernel: int = 3,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner: ...
