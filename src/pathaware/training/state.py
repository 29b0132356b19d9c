"""The state of a run, from which it resumes as if it had not been stopped."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pathaware.core import VERSION
from pathaware.core.errors import UsageError
from pathaware.core.schema import read_table
from pathaware.training.checksummed import CorruptFile, load_parameters, read_checksummed, write_checksummed


@dataclass(frozen=True)
class AboutState:
    """The metadata of a state.

    `best` is the best validation so far, `config` the configuration of the run.
    """

    iteration: int
    seconds: float
    best: float | None
    config: dict[str, Any]


@dataclass(frozen=True)
class State(AboutState):
    """θ₀ and Φ, the optimiser's state, PyTorch's random state, pending metrics and the iteration.

    Tasks are drawn from the seed and the number of the iteration, so samplers have no state.
    """

    tensors: dict[str, Tensor]

    @classmethod
    def of(
        cls,
        kept: Mapping[str, nn.Module],
        optimizer: Optimizer,
        iteration: int,
        seconds: float,
        best: float | None,
        config: dict[str, Any],
        pending: dict[str, Tensor],
    ) -> State:
        """`kept` are the modules whose tensors are kept: the learner, and what is trained beside it."""
        tensors = {
            f"{part}.{name}": value
            for part, module in kept.items()
            for name, value in module.state_dict().items()
        }
        tensors |= {f"waiting.{name}": value for name, value in pending.items()}
        parameters = _parameters(kept)
        for i, parameter in enumerate(parameters):
            for name, value in optimizer.state[parameter].items():
                tensors[f"optimizer.{i}.{name}"] = value
        tensors["random.cpu"] = torch.get_rng_state()
        device = parameters[0].device
        if device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(device)
        copies = {name: value.detach().cpu().clone() for name, value in tensors.items()}
        return cls(iteration, seconds, best, config, copies)

    @torch.no_grad()
    def restore(self, kept: Mapping[str, nn.Module], optimizer: Optimizer) -> None:
        for part, module in kept.items():
            load_parameters(module, self._part(f"{part}."), "the state of this run")
        parameters = _parameters(kept)
        for i, parameter in enumerate(parameters):
            # A capturable optimiser counts its steps on the device of the parameter.
            found = self._part(f"optimizer.{i}.")
            optimizer.state[parameter] = {name: _placed(value, parameter) for name, value in found.items()}
        torch.set_rng_state(self.tensors["random.cpu"])
        if "random.cuda" in self.tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(self.tensors["random.cuda"], parameters[0].device)

    @property
    def pending(self) -> dict[str, Tensor]:
        """Metrics accumulated since the last log entry (see `MetricsWindow`)."""
        return self._part("waiting.")

    def _part(self, prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}

    def write(self, path: Path) -> None:
        about = {
            "iteration": self.iteration,
            "seconds": self.seconds,
            "best": self.best,
            "config": self.config,
            "versions": {
                "pathaware": VERSION,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }
        write_checksummed(path, self.tensors, about)

    @classmethod
    def read(cls, path: Path) -> State:
        """Read a state; raise `CorruptFile` if the file is not what was written."""
        tensors, found = read_checksummed(path)
        try:
            about = read_table("state", found, AboutState, known_only=False)
        except UsageError as error:
            raise CorruptFile(error.message) from None
        return cls(**vars(about), tensors=tensors)


def _parameters(kept: Mapping[str, nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in kept.values() for parameter in module.parameters()]


def _placed(value: Tensor, parameter: Tensor) -> Tensor:
    """A tensor on the device of a parameter and in its memory layout, on which fused optimisers rely."""
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
