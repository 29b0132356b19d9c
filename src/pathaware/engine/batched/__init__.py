"""Batched execution: every layer of a network as one operation for all tasks."""

from pathaware.engine.batched.layers import LAYERS
from pathaware.engine.batched.lowering import Lowered, Prepared, lower

__all__ = ["LAYERS", "Lowered", "Prepared", "lower"]
