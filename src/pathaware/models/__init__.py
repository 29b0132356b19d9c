"""Networks of the paper's experiments. Any other `nn.Module` works as well."""

from pathaware.models.conv4 import conv4
from pathaware.models.mlp import mlp

__all__ = ["conv4", "mlp"]
