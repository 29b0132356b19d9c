"""Models that come with the package, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pathaware.core.batch_norm import settle_norms
from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner
from pathaware.data.pixels import Picture, ImageInput
from pathaware.inference.change_ways import for_classes
from pathaware.training.config import Config
from pathaware.training.run_folder import Run

SHIPPED = Path(__file__).parent / "shipped"


def shipped() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.toml"))


def find_run(run: str | Path) -> Path:
    """The folder of a run; a name that is no folder here may be that of a shipped model."""
    folder = Path(run)
    if not folder.exists() and str(run) in shipped():
        return SHIPPED / str(run)
    return folder


# A trained run, ready for somebody's own classes.


BATCH = 256
"""Pictures that are answered at a time."""


@dataclass(frozen=True)
class Step:
    """Where adaptation stood after a number of inner steps, on the very examples it adapts to."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Adapted:
    """A network that tells one's own classes apart; it needs the learner no more.

    `network` takes normalised pictures `[N, C, size, size]` to logits `[N, classes]`, each by itself. `steps`
    tell how well it told its own examples apart before adapting and after each inner step.
    """

    network: nn.Module
    pictures: ImageInput
    steps: tuple[Step, ...] = ()

    @torch.no_grad()
    def probabilities(self, pixels: Tensor) -> Tensor:
        """Of pixels `[N, C, size, size]` in 0…255, for every class: `[N, classes]`, each row sums to one."""
        device = next(self.network.parameters()).device
        parts = [
            self.network(self.pictures.normalised(part.to(device))).double().softmax(-1).cpu()
            for part in pixels.split(BATCH)
        ]
        return torch.cat(parts)


class TrainedModel:
    """What a run on images has learned, with all that is needed to adapt it: no data set has to be there.

    >>> model = TrainedModel.open("glyphs")
    >>> model.pictures.shape, model.ways
    ((1, 28, 28), 5)
    """

    def __init__(
        self, config: Config, learned: Mapping[str, Tensor], inputs: Mapping[str, Any], device: torch.device
    ) -> None:
        self.config, self.device = config, device
        self.pictures = ImageInput.from_dict(inputs)
        problem: Any = config.problem
        self.ways: int = problem.ways
        self._learned, self._inputs = learned, inputs
        self._learners: dict[int, FewShotLearner] = {}

    @classmethod
    def open(cls, run: str | Path, device: str = "auto") -> TrainedModel:
        """The model in the folder of a run, or one that ships with the package, by its name."""
        opened = Run.open(find_run(run))
        if opened.config.problem.regression:
            raise UsageError(
                f"{run} was trained on {opened.config.problem.label}, not on images", field="run"
            )
        learned, inputs = opened.learned()
        return cls(
            opened.config, learned, inputs, replace(opened.config.training, device=device).torch_device
        )

    def learner(self, classes: int) -> FewShotLearner:
        """The learner for this number of classes, see `pathaware.inference.change_ways`."""
        if classes not in self._learners:
            made = for_classes(self.config, self._learned, self._inputs, classes, self.device)
            self._learners[classes] = made.float().eval()
        return self._learners[classes]

    def pixels(self, pictures: Sequence[Picture] | Tensor, what: str = "pictures") -> Tensor:
        """Pictures in any form as pixels `[N, C, size, size]` in 0…255."""
        return self.pictures.stack(pictures, what)

    def adapt(self, pixels: Tensor, labels: Tensor, classes: int) -> Adapted:
        """Learn `classes` from pixels `[S, C, size, size]` and labels `[S]` in 0…classes-1.

        Every class counts alike, however many pictures it has.
        """
        even = evened(labels, classes)
        x, y = self.pictures.normalised(pixels.to(self.device)), labels.to(self.device)
        network, answers = self.learner(classes).adapt_and_predict(x[even], y[even], x)
        steps = tuple(_step(j, output[0], y) for j, output in enumerate(answers.outputs))
        return Adapted(settle_norms(network, x[even]), self.pictures, steps)


def _step(j: int, output: Tensor, y: Tensor) -> Step:
    right = (output.argmax(-1) == y).double().mean()
    return Step(j, cross_entropy(output, y).item(), right.item())


def evened(labels: Tensor, classes: int) -> Tensor:
    """Which examples to learn from so that no class has more than another: those of small classes again and
    again. Training has seen nothing but tasks with as many of each, and a mean over uneven ones answers with
    the class that has most."""
    places = [(labels == label).nonzero()[:, 0] for label in range(classes)]
    most = max(len(place) for place in places)
    return torch.cat([place[torch.arange(most) % len(place)] for place in places])
