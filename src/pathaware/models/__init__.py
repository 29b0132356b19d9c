"""Networks, by the names that configurations use. Models import core only."""

from pathaware.models.networks import MODELS, build_model, conv4, mlp, resnet12

__all__ = ["MODELS", "build_model", "conv4", "mlp", "resnet12"]
