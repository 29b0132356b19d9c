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
from pathaware.core.path import Trajectory as Trajectory
from pathaware.core.rule import Rule as Rule
from pathaware.inference.estimators import FewShotClassifier as FewShotClassifier
from pathaware.inference.estimators import FewShotRegressor as FewShotRegressor
from pathaware.inference.trained_model import TrainedModel as TrainedModel
from pathaware.methods import GradientDescent as GradientDescent
from pathaware.methods import MetaSGD as MetaSGD
from pathaware.methods import Pamela as Pamela
from pathaware.methods import Reptile as Reptile
from pathaware.methods.method import Method as Method
from pathaware.online.learner import OnlineLearner as OnlineLearner
from pathaware.training.evaluation import evaluate as evaluate
from pathaware.training.fitting import fit as fit

METHOD_FILES: tuple[str, ...]
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
) -> MetaLearner:
    """Generates step sizes and weight decays from parameters and gradients (Baik, Choi, Choi, Kim and Lee, NeurIPS 2020, arXiv:2011.00209)."""

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
) -> MetaLearner:
    """MAML that adapts the last layer only (Raghu, Raghu, Bengio and Vinyals, ICLR 2020, arXiv:1909.09157)."""

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
) -> MetaLearner:
    """MAML that adapts all but the last layer (Oh, Yoo, Kim and Yun, ICLR 2021, arXiv:2008.08882)."""

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
) -> MetaLearner:
    """MAML with inner gradients held constant (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400)."""

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
) -> MetaLearner:
    """Learns a step size for each singular vector of the gradient (Kang, Hwang, Eo, Kim and Rhee, CVPR 2023, arXiv:2304.01552)."""

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
) -> MetaLearner:
    """Gates the initialisation by a hierarchical clustering of tasks (Yao, Wei, Huang and Li, ICML 2019, arXiv:1905.05301)."""

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
) -> MetaLearner:
    """Differentiates the regularised minimum instead of the path to it (Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630)."""

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
) -> MetaLearner:
    """IMAML with Newton steps instead of gradient steps (Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630)."""

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
) -> MetaLearner:
    """MAML that attenuates its initialisation per task and layer (Baik, Hong and Lee, CVPR 2020, arXiv:1906.05895)."""

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
) -> MetaLearner:
    """Learns an optimiser, an LSTM whose output is the update (Andrychowicz, Denil, Gomez, Hoffman, Pfau, Schaul, Shillingford and de Freitas, NeurIPS 2016, arXiv:1606.04474)."""

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
) -> MetaLearner:
    """MAML with a penalty on the curvature where tasks end (Grant, Finn, Levine, Darrell and Griffiths, ICLR 2018, arXiv:1801.08930)."""

def lr_d2(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    penalty: float = 1.0,
    scale: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Fits the last layer by logistic regression (Bertinetto, Henriques, Torr and Vedaldi, ICLR 2019, arXiv:1805.08136)."""

def lstm(
    network: nn.Module,
    loss: Loss,
    *,
    hidden: int = 200,
    layers: int = 1,
    label: Literal["with", "after"] = "with",
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Reads examples and labels in sequence; its state is what it has learned (Hochreiter, Younger and Conwell, ICANN 2001)."""

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
) -> MetaLearner:
    """Learns an initialisation for gradient descent (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400)."""

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
) -> MetaLearner:
    """MAML with step sizes, norm parameters and a loss per step (Antoniou, Edwards and Storkey, ICLR 2019, arXiv:1810.09502)."""

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
) -> HeadLearner:
    """Writes examples to an external memory and reads it for queries (Santoro, Bartunov, Botvinick, Wierstra and Lillicrap, ICML 2016, arXiv:1605.06065)."""

def matching(
    network: nn.Module,
    loss: Loss,
    *,
    sharpness: float = 10.0,
    full_context: bool = False,
    reads: int = 5,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Predicts by attention to the support set (Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, NeurIPS 2016, arXiv:1606.04080)."""

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
) -> MetaLearner:
    """Learns matrices that multiply every gradient (Park and Oliva, NeurIPS 2019, arXiv:1902.03356)."""

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
) -> MetaLearner:
    """Learns an optimiser, an LSTM whose cell state is the parameters (Ravi and Larochelle, ICLR 2017, OpenReview rJY0-Kcll)."""

def meta_networks(
    network: nn.Module,
    loss: Loss,
    *,
    hidden: int = 64,
    generator: int = 20,
    sharpness: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Turns loss gradients into fast weights that queries read from a memory (Munkhdalai and Yu, ICML 2017, arXiv:1703.00837)."""

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
) -> MetaLearner:
    """Learns an initialisation and a step size per parameter (Li, Zhou, Chen and Li, 2017, arXiv:1707.09835)."""

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
) -> MetaLearner:
    """Adds a learned, task-adaptive loss to the support loss (Baik, Choi, Kim, Cho, Min and Lee, ICCV 2021, arXiv:2110.03909)."""

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
) -> MetaLearner:
    """Learns the metric and the subspace of gradient descent (Lee and Choi, ICML 2018, arXiv:1801.05558)."""

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
) -> MetaLearner:
    """Learns a preconditioner for every step and skip connections along the path (Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291)."""

def proto_pamela(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.1,
    skip: int | None = 2,
    scale: float = 10.0,
    shrinkage: float | None = 3.0,
    centring: float = 0.5,
    power: float = 1.0,
    adaptive: bool = False,
    anchors: int = 0,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Follows a learned path from the class means, for any number of classes and images (Triantafillou et al., ICLR 2020, arXiv:1903.03096)."""

def prototypical(
    network: nn.Module,
    loss: Loss,
    *,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Predicts the class whose mean feature is nearest (Snell, Swersky and Zemel, NeurIPS 2017, arXiv:1703.05175)."""

def r2d2(
    network: nn.Module,
    loss: Loss,
    *,
    penalty: float = 0.1,
    scale: float = 10.0,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Fits the last layer by ridge regression (Bertinetto, Henriques, Torr and Vedaldi, ICLR 2019, arXiv:1805.08136)."""

def relation(
    network: nn.Module,
    loss: Loss,
    *,
    hidden: int = 8,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Learns to compare queries with classes (Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025)."""

def reptile(
    network: nn.Module,
    loss: Loss,
    *,
    steps: int = 5,
    step_size: float = 0.01,
    adam: bool = False,
    train_steps: int | None = None,
    execution: ExecutionName = "auto",
    guard: bool = True,
    checkpoint: bool = False,
    head: HeadStart = "learned",
    dimensions: int = 64,
) -> MetaLearner:
    """Moves the initialisation towards the parameters that tasks end with (Nichol, Achiam and Schulman, 2018, arXiv:1803.02999)."""

def siamese(
    network: nn.Module,
    loss: Loss,
    *,
    execution: ExecutionName = "auto",
) -> HeadLearner:
    """Learns whether two images share a class and predicts the best match (Koch, Zemel and Salakhutdinov, ICML Deep Learning Workshop 2015)."""

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
) -> MetaLearner:
    """MAML on tasks made of unlabelled images and their augmentations (Khodadadeh, Bölöni and Shah, NeurIPS 2019, arXiv:1811.11819)."""

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
) -> MetaLearner:
    """Learns layers that precondition gradients (Flennerhag, Rusu, Pascanu, Visin, Yin and Hadsell, ICLR 2020, arXiv:1909.00025)."""

