"""Figures and tables of trained runs, and the HTML report of them. The figures named here are public."""

from pathaware.report.figures import (
    coefficients,
    fitted_curves,
    metric_per_step,
    training_curves,
)

__all__ = ["coefficients", "fitted_curves", "metric_per_step", "training_curves"]
