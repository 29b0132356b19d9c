"""A server with given limits, for tests: `python -m tests.serve.small_server '{"sessions": 3}'`.

With `photos` as second argument, its model is untrained and takes colour images.
"""

from __future__ import annotations

import json
import sys

import torch

from pathaware.inference.trained_model import TrainedModel
from pathaware.serve.app import make_app
from pathaware.serve.limits import Limits
from pathaware.serve.server import address_of, bind, serve
from pathaware.training.meta_training import build


def photos() -> TrainedModel:
    config, cpu = TrainedModel.open("glyphs", "cpu").config, torch.device("cpu")
    inputs = {"size": 32, "channels": 3, "ink": False, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    return TrainedModel(config, build(config, cpu, inputs).state_dict(), inputs, cpu)


if __name__ == "__main__":
    limits = Limits(**json.loads(sys.argv[1]))
    bound = bind("127.0.0.1", 0)
    model = photos() if "photos" in sys.argv else TrainedModel.open("glyphs", "cpu")
    app = make_app(model, "glyphs", limits)
    sys.exit(serve(app, bound, limits, lambda: print(f"at {address_of(bound)} now", flush=True)))
