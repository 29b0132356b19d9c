"""UMTRA (Khodadadeh, Bölöni and Shah, NeurIPS 2019, arXiv:1811.11819).

    x₁ … x_N ~ all training images, without labels         each one is a class of a task
    support = {(xᵢ, i)},  query = {(A(xᵢ), i)}              A: a random augmentation
    θⱼ₊₁ = θⱼ − α ∇L_support(θⱼ)                            MAML on these tasks, θⱼ `[T, D]`
    minimise L_query(θₙ) over θ₀

Unsupervised meta-learning: N random images most likely belong to N classes, and images of a class share what
an augmentation leaves recognisable. Labels are needed only for the few examples of a new task. The tasks are
the problem's setting `labels = false`, which works with every method; this one is MAML with it. See
`pathaware.data.unlabelled`.

Departures from the authors' code:

- For photographs the authors use AutoAugment or, in later code, random colours, shifts, rotations, crops
  and pixels set to zero. Here crops, affine maps, colours, grey images and erased squares are drawn.
- Characters are rotated, scaled and sheared, too; the authors shift them and set half of the pixels to zero.
- The default is five steps of 0.01, as with all methods; theirs is one step of 0.05.
- With several shots, all support images of a class but the first are augmentations. Theirs is trained with
  one shot. Each class has as many queries as the problem says; theirs has one.
"""

from __future__ import annotations

from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.meta_gradient import Unrolled
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class WithoutLabels(Unrolled):
    """The second-order meta-gradient of tasks that were made without labels."""

    compilable_order = "second"

    def loss(self, learner: FewShotLearner, episodes: Episodes) -> Tensor:
        _refuse_labels(episodes)
        return super().loss(learner, episodes)

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        _refuse_labels(episodes)
        return super().backward(learner, episodes, weight)


def _refuse_labels(episodes: Episodes) -> None:
    if episodes.labelled:
        raise UsageError(
            "umtra learns without labels: take the tasks from pathaware.data.UnlabelledEpisodes, or make "
            "Episodes(…, labelled=False) in which each class is one image and its augmentations",
            field="episodes",
        )


METHOD = Method(
    "umtra",
    "MAML on tasks made of unlabelled images and their augmentations",
    "Khodadadeh, Bölöni and Shah, NeurIPS 2019, arXiv:1811.11819",
    2019,
    GradientDescent,
    meta_gradient=WithoutLabels,
    problem={"labels": False},
)
