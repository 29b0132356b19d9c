"""The fast path: every layer of a network as one operation for all tasks."""

from pathaware.engine.batched.layers import NotLowerable
from pathaware.engine.batched.lowering import lower

__all__ = ["NotLowerable", "lower"]
