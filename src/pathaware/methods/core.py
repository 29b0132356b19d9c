"""The paper's own method and its nearest relatives, whose rules and estimators are the package's core."""

from __future__ import annotations

from pathaware.methods.base import Method
from pathaware.outer import Outer, Reptile, Unrolled
from pathaware.rules import GradientDescent, MetaSGD, Pamela

_FINN = "Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400"


def first_order() -> Outer:
    return Unrolled("first")


MAML = Method("maml", "learns a start for gradient descent", _FINN, 2017, GradientDescent)

FOMAML = Method(
    "fomaml",
    "MAML with inner gradients held constant",
    _FINN,
    2017,
    GradientDescent,
    outer=first_order,
    order="first",
)

REPTILE = Method(
    "reptile",
    "moves the start towards where tasks end",
    "Nichol, Achiam and Schulman, 2018, arXiv:1803.02999",
    2018,
    GradientDescent,
    outer=Reptile,
    order="first",
)

META_SGD = Method(
    "meta-sgd",
    "learns a rate for every parameter too",
    "Li, Zhou, Chen and Li, 2017, arXiv:1707.09835",
    2017,
    MetaSGD,
)

PAMELA = Method(
    "pamela",
    "learns a preconditioner for every step and skips along the path",
    "Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291",
    2020,
    Pamela,
)
