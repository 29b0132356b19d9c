"""How processes find each other after a restart.

torchrun keeps one store for all its attempts, and what a dead process wrote there is still to be read: its
address, or NCCL's identifier. Whoever reads that waits for a process that is no more. So the processes of an
attempt first agree on a name that only they can know, and put everything else under it.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pathaware.core.episodes import share_of
from pathaware.core.errors import UsageError
from pathaware.training.config import Training

PATIENCE = 1800.0
"""Seconds that the first waits for the others, as long as PyTorch's own stores do."""


def agree_on_attempt(store: Store, rank: int, size: int) -> str:
    """A name for this attempt, the same in all of its processes and never used before.

    Each says a word of its own and waits for the answer to that very word, which no earlier attempt can have
    left. The first answers whatever it hears, old words too, until everyone has confirmed its name.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"word/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    missing = set(range(1, size))
    ends = time.monotonic() + PATIENCE
    while missing:
        for other in sorted(missing):
            if store.check([f"confirmed/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"word/{other}"]):
                store.set(f"answer/{store.get(f'word/{other}').decode()}", own)
        if time.monotonic() > ends:
            raise TimeoutError(f"processes {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(0.01)
    return own


# The processes that train one run together, as torchrun starts them.
#
# Every process draws all tasks of a meta-batch and takes the meta-gradient of its share; the sum over all is
# what one process would have had. From there on all do the same, so parameters stay equal without being sent.


T = TypeVar("T")


class Shareable(Protocol):
    """Tasks that can be shared out: a source's plan."""

    def share(self, worker: int, workers: int) -> Self: ...


P = TypeVar("P", bound=Shareable)


class World:
    """One process by itself: all tasks are its own, and there is nobody to talk to."""

    rank: int = 0
    size: int = 1
    restarts: bool = False
    """Whether someone starts the same command again when a process dies."""

    @property
    def is_writer(self) -> bool:
        """Whether this process keeps the run and speaks of it; the others are quiet."""
        return self.rank == 0

    def share(self, plan: P) -> P:
        """The tasks of a plan that are this process's; none, where there are more processes than tasks."""
        return plan.share(self.rank, self.size)

    def part(self, tasks: int) -> range:
        """Which of so many tasks are this process's."""
        return share_of(tasks, self.rank, self.size)

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Give every process the sum of all processes' gradients, to the same bits."""

    def equalise(self, parameters: Sequence[Tensor]) -> None:
        """Give every process the writer's values."""

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """What all processes have, one after another along the first axis, in the order of their tasks."""
        return torch.cat(list(parts))

    def from_writer(self, find: Callable[[], T]) -> T:
        """What the writer finds. Where it meets a usage error, it says so and all leave."""
        return find()


class Processes(World):
    """One of several processes. Methods that communicate must be called by all, in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.restarts = dist.is_torchelastic_launched()

    @torch.no_grad()
    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        # One message, not one a tensor: they are so small that what counts is how many there are.
        # A process without tasks has no gradients; it adds nothing and receives all the same.
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        torch._foreach_copy_(grads, _cut(flat, grads))
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad

    @torch.no_grad()
    def equalise(self, parameters: Sequence[Tensor]) -> None:
        flat = torch.cat([p.flatten() for p in parameters])
        dist.broadcast(flat, src=0)
        torch._foreach_copy_(list(parameters), _cut(flat, parameters))

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        own = torch.cat(list(parts)).cpu() if parts else None
        found: list[Tensor | None] = [None] * self.size
        dist.all_gather_object(found, own)  # as objects: nobody need know how much the others have
        return torch.cat([part for part in found if part is not None])

    def from_writer(self, find: Callable[[], T]) -> T:
        found: list[Any] = [None, None]
        if self.is_writer:
            try:
                found[0] = find()
            except UsageError as error:
                found[1] = error
        dist.broadcast_object_list(found, src=0)
        result, refusal = found
        if refusal is not None:
            raise refusal if self.is_writer else SystemExit(2)
        value: T = result
        return value


ALONE = World()


@contextmanager
def process_group(training: Training) -> Iterator[World]:
    """Join the processes that torchrun started, or stay alone where it started none."""
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys():
        yield ALONE
        return
    device = _own_device(training)
    backend = "gloo" if device is None else "nccl"
    store, rank, size = next(rendezvous("env://"))
    attempt = PrefixStore(agree_on_attempt(store, rank, size), store)
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size, device_id=device)
    try:
        yield Processes()
    except BaseException:
        # NCCL takes leave of all ranks together. One that fails cannot wait for those that still compute: it
        # just ends, and torchrun ends them.
        if backend == "gloo":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def _own_device(training: Training) -> torch.device | None:
    """This process's GPU, made the one that `cuda` means from here on; None on a CPU."""
    wanted, place = training.torch_device, int(os.environ["LOCAL_RANK"])
    if wanted.type != "cuda":
        return None
    if wanted.index is not None and os.environ["WORLD_SIZE"] != "1":
        raise UsageError(f"device: {wanted} is one GPU for several processes; use auto, cuda or cpu")
    count = torch.cuda.device_count()
    if place >= count:
        raise UsageError(
            f"process {place} of this machine has no GPU; there are {count}", field="nproc_per_node"
        )
    device = torch.device("cuda", place if wanted.index is None else wanted.index)
    torch.cuda.set_device(device)
    return device


def _cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]
