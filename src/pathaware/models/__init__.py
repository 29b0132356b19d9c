"""Networks of the paper's experiments. Any other `nn.Module` works as well."""

from pathaware.models.conv4 import conv4
from pathaware.models.mlp import mlp
from pathaware.models.resnet12 import resnet12

__all__ = ["conv4", "mlp", "resnet12"]
