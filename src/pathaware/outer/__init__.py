"""Meta-gradient estimators, one a file."""

from pathaware.outer.base import Outer
from pathaware.outer.reptile import Reptile
from pathaware.outer.unrolled import Unrolled

__all__ = ["Outer", "Reptile", "Unrolled"]
