"""FOMAML, first-order MAML (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400, section 5.2).

    θⱼ₊₁ = θⱼ − α ∇L(θⱼ)                                MAML's inner loop
    ∇θ₀ := ∇L_query(θₙ)                                 every inner gradient ∇L(θⱼ) held constant

MAML without second derivatives, which saves time and memory.

Departures from the authors' code: those of MAML, of which this is the option `stop_grad` in their code.
"""

from __future__ import annotations

from pathaware.core.meta_gradient import first_order
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

METHOD = Method(
    "fomaml",
    "MAML with inner gradients held constant",
    "Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400",
    2017,
    GradientDescent,
    meta_gradient=first_order,
    order="first",
)
