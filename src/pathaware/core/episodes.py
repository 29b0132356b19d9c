"""A batch of tasks, and the interface of all sources of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from pathaware.core.errors import UsageError

NAMES = ("support_x", "support_y", "query_x", "query_y")


@dataclass(frozen=True, eq=False, repr=False)
class Episodes:
    """T tasks, each with a support set to adapt on and a query set to evaluate on.

    Shapes: `support_x [T, S, …]`, `support_y [T, S, …]`, `query_x [T, Q, …]`, `query_y [T, Q, …]`.
    The examples of image episodes are in random order within the support set and within the query set.

    Training tasks may carry more about their queries, for losses that use it: `query_images [T, Q]` are their
    indices in the store, and `query_boxes [T, Q, 4]` the part of each that another query may replace
    (CutMix: top, bottom, left and right edge).

    >>> episodes = Episodes(*(torch.randn(4, count, 1) for count in (5, 5, 7, 7)))  # four tasks
    >>> len(episodes), len(episodes[:3]), [len(chunk) for chunk in episodes.chunks(3)]
    (4, 3, [3, 1])

    A single task is a batch of one, so `learner.meta_loss(episodes[0])` works, and so do loops over tasks:

    >>> len(episodes[-1]), [len(task) for task in episodes]
    (1, [1, 1, 1, 1])

    Tasks print as shapes, and two batches are equal only if they are the same object:

    >>> episodes
    Episodes(support_x=[4, 5, 1], support_y=[4, 5, 1], query_x=[4, 7, 1], query_y=[4, 7, 1])
    """

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor
    query_images: Tensor | None = None
    query_boxes: Tensor | None = None
    labelled: bool = True
    """False if each class is one image and its augmentations, see `pathaware.data.UnlabelledEpisodes`."""

    def __post_init__(self) -> None:
        check_tensors(**self.named())
        counts = [t.shape[0] if t.ndim else None for t in self.tensors()]
        if len(set(counts)) != 1:
            raise UsageError(f"episodes: the four tensors must share their task axis, got {counts}")
        check_examples(self.support_x, self.support_y, "support set")
        check_examples(self.query_x, self.query_y, "query set")
        devices = [tensor.device for tensor in self.tensors()]
        if len(set(devices)) != 1:
            found = ", ".join(map(str, devices))
            raise UsageError(f"episodes: the four tensors must be on one device, got {found}")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={list(tensor.shape)}" for name, tensor in self.named().items())
        return f"{type(self).__name__}({shapes})"

    @classmethod
    def stack(cls, tasks: Sequence[Sequence[Tensor]]) -> Episodes:
        """Batch single tasks, each four tensors: `support_x [S, …]`, `support_y`, `query_x` and `query_y`.

        A `collate_fn` for the `DataLoader` of a data set whose items are such tasks.

        >>> task = [torch.randn(count, 1) for count in (5, 5, 7, 7)]
        >>> Episodes.stack([task, task, task]).query_x.shape
        torch.Size([3, 7, 1])
        """
        if not tasks:
            raise UsageError("tasks: there is no task; at least one")
        for task in tasks:
            if len(task) != len(NAMES):
                raise UsageError(f"tasks: each must be {', '.join(NAMES)}, got {len(task)} values")
            check_tensors(**dict(zip(NAMES, task, strict=True)))
        for name, tensors in zip(NAMES, zip(*tasks, strict=True), strict=True):
            shapes = sorted({tuple(tensor.shape) for tensor in tensors})
            if len(shapes) > 1:
                raise UsageError(
                    f"tasks: {name} has shapes {list(shapes[0])} and {list(shapes[1])}; tasks of one batch "
                    "must have equal sizes"
                )
        support_x, support_y, query_x, query_y = map(torch.stack, zip(*tasks, strict=True))
        return cls(support_x, support_y, query_x, query_y)

    def __len__(self) -> int:
        return self.support_x.shape[0]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four tensors: support inputs and targets, query inputs and targets."""
        return self.support_x, self.support_y, self.query_x, self.query_y

    def named(self) -> dict[str, Tensor]:
        """The four tensors by their names."""
        return dict(zip(NAMES, self.tensors(), strict=True))

    def __getitem__(self, tasks: int | slice) -> Episodes:
        """Some of the tasks, or a single one as a batch of one task."""
        if isinstance(tasks, Integral):
            first = range(len(self))[tasks]
            tasks = slice(first, first + 1)
        return self._each(lambda t: t[tasks])

    def __iter__(self) -> Iterator[Episodes]:
        """Each task as a batch of one task."""
        return self.chunks(1)

    def share(self, worker: int, workers: int) -> Episodes:
        """The tasks of one of several workers."""
        own = share_of(len(self), worker, workers)
        return self[own.start : own.stop]

    def chunks(self, size: int | None) -> Iterator[Episodes]:
        """Split into episodes of at most `size` tasks."""
        if size is None or len(self) <= size:
            if len(self):
                yield self
            return
        for first in range(0, len(self), size):
            yield self[first : first + size]

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
    ) -> Episodes:
        """Move to a device; `dtype` applies to floating-point tensors only, labels keep theirs.

        With `non_blocking`, copies from pinned memory to a GPU are asynchronous.
        """

        def moved(tensor: Tensor) -> Tensor:
            wanted = dtype if tensor.is_floating_point() else None
            return tensor.to(device, wanted, non_blocking=non_blocking)

        return self._each(moved)

    def pin_memory(self) -> Episodes:
        """Copy to page-locked memory, from which copies to a GPU are faster. A `DataLoader` with
        `pin_memory=True` calls it; like `Tensor.pin_memory`, it needs an accelerator."""
        return self._each(lambda tensor: tensor.contiguous().pin_memory())  # labels may be expanded

    def _each(self, change: Callable[[Tensor], Tensor]) -> Episodes:
        images, boxes = (None if t is None else change(t) for t in (self.query_images, self.query_boxes))
        support_x, support_y, query_x, query_y = map(change, self.tensors())
        return Episodes(support_x, support_y, query_x, query_y, images, boxes, self.labelled)


def check_tensors(**arguments: object) -> None:
    """Raise unless all arguments are tensors."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise UsageError(
                f"it must be a tensor, got {type(value).__name__}; call torch.as_tensor", field=name
            )


def check_examples(x: Tensor, y: Tensor, name: str) -> None:
    """Raise unless `x [T, N, …]` and `y [T, N, …]` are inputs and targets of the same N ≥ 1 examples."""
    if x.ndim < 2 or y.ndim < 2:
        raise UsageError(
            f"{name}: inputs and targets need an axis of tasks and one of examples, got shapes "
            f"{list(x.shape)} and {list(y.shape)}"
        )
    if x.shape[:2] != y.shape[:2]:
        raise UsageError(
            f"{name}: inputs and targets must have equal numbers of tasks and examples, got "
            f"{list(x.shape[:2])} and {list(y.shape[:2])}"
        )
    if x.shape[1] == 0:
        raise UsageError(f"{name}: it is empty; at least one example per task")


def share_of(tasks: int, worker: int, workers: int) -> range:
    """The indices of one worker's tasks: consecutive, and split as evenly as possible."""
    if not 0 <= worker < workers:
        raise UsageError(f"worker {worker}: must be at least 0 and below the number of workers, {workers}")
    return range(tasks * worker // workers, tasks * (worker + 1) // workers)


class TaskSource(ABC):
    """Produces tasks in two stages.

    `draw` makes every random choice on the CPU, whatever the device of the data, so the same seed gives the
    same tasks everywhere. It returns a plan: a dataclass of tensors with a method `share` that selects the
    part of one worker (see `Episodes.share`). `gather` turns a plan into episodes on the device; it uses no
    randomness, so that it can be captured in a CUDA graph.
    """

    capturable: bool = False
    """True if `gather` runs on the GPU without synchronising with the host."""
    shuffle: bool = True
    """False to keep examples in a fixed order, shot by shot and class by class, where there are classes."""

    @abstractmethod
    def draw(self, tasks: int, generator: torch.Generator) -> Any:
        """Make all random choices for this number of tasks; return them as a plan."""

    @abstractmethod
    def gather(self, plan: Any) -> Episodes:
        """Turn a plan into episodes on the device."""

    def sample(self, tasks: int, generator: torch.Generator) -> Episodes:
        """Draw and gather this number of tasks."""
        return self.gather(self.draw(tasks, generator))
