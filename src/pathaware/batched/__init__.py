"""The fast path: every layer of a network as one operation for all tasks."""

from pathaware.batched.lower import lower
from pathaware.batched.value import NotLowerable

__all__ = ["NotLowerable", "lower"]
