"""Where a run stands: enough to go on as if it had not been stopped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathaware.errors import UsageError
from pathaware.learner import MetaLearner


@dataclass(frozen=True)
class State:
    """θ₀ and Φ, the optimiser's memory, and how far the run is.

    Tasks are drawn from the seed and the number of the iteration, so there is no random state to keep.
    """

    iteration: int
    seconds: float
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, learner: MetaLearner, optimizer: Any, iteration: int, seconds: float) -> State:
        tensors = {f"learner.{name}": value for name, value in learner.state_dict().items()}
        for i, parameter in enumerate(learner.parameters()):
            for name, value in optimizer.state[parameter].items():
                tensors[f"optimizer.{i}.{name}"] = value
        return cls(iteration, seconds, {k: v.detach().cpu().clone() for k, v in tensors.items()})

    @torch.no_grad()
    def restore(self, learner: MetaLearner, optimizer: Any) -> None:
        learner.load_state_dict(
            {k.removeprefix("learner."): v for k, v in self.tensors.items() if k.startswith("learner.")}
        )
        for i, parameter in enumerate(learner.parameters()):
            prefix = f"optimizer.{i}."
            found = {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}
            # A step of the optimiser is counted where it wants to count it: on the device.
            optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in found.items()}

    def write(self, path: Path) -> None:
        """All of it or nothing: a reader meets the old file or the new one."""
        from safetensors.torch import save_file

        draft = path.with_name(path.name + ".new")
        about = json.dumps({"iteration": self.iteration, "seconds": self.seconds})
        save_file(self.tensors, draft, metadata={"state": about})
        os.replace(draft, path)

    @classmethod
    def read(cls, path: Path) -> State:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise UsageError(f"RUN: {path} cannot be read ({error})") from None
        return cls(about["iteration"], about["seconds"], tensors)
