"""Numbers printed in the paper, to stand beside ours."""

from __future__ import annotations

# Table 3: mean squared error of sine regression and its interval, by shots and method.
SINE_MSE: dict[int, dict[str, tuple[float, float]]] = {
    5: {"maml": (1.13, 0.18), "meta-sgd": (0.90, 0.16), "mt-net": (0.76, 0.09), "pamela": (0.54, 0.06)},
    10: {"maml": (0.77, 0.11), "meta-sgd": (0.53, 0.09), "mt-net": (0.49, 0.05), "pamela": (0.41, 0.04)},
    20: {"maml": (0.48, 0.08), "meta-sgd": (0.31, 0.05), "mt-net": (0.33, 0.04), "pamela": (0.17, 0.03)},
}
