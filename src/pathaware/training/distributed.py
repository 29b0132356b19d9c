"""Distributed training: the processes that torchrun starts train one run together.

Every rank draws all tasks of a meta-batch and computes the meta-gradient of its share; the sum over ranks is
what one process would have computed. From there on all ranks do the same, so parameters stay equal without
being sent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from pathaware.core.episodes import share_of
from pathaware.core.errors import UsageError
from pathaware.training.config import Training

JOIN_SECONDS = 1800.0
"""Seconds that rank 0 waits for the others: the default timeout of PyTorch's stores."""


def agree_on_attempt(store: Store, rank: int, size: int) -> str:
    """Agree on an id for this attempt, the same on all ranks and never used before.

    torchrun keeps one store for all restarts, in which addresses and NCCL ids of dead processes remain; a
    process that reads one waits forever. So each attempt keeps its keys under its own id. Each rank publishes
    a nonce; rank 0 replies with the attempt id, also to nonces of earlier attempts, until all ranks have
    confirmed it.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"nonce/{rank}", own)
        name = store.get(f"reply/{own}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    missing = set(range(1, size))
    ends = time.monotonic() + JOIN_SECONDS
    while missing:
        for other in sorted(missing):
            if store.check([f"confirmed/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"nonce/{other}"]):
                store.set(f"reply/{store.get(f'nonce/{other}').decode()}", own)
        if time.monotonic() > ends:
            raise TimeoutError(f"ranks {', '.join(map(str, sorted(missing)))} did not join")
        time.sleep(0.01)
    return own


T = TypeVar("T")


class Shareable(Protocol):
    """Tasks that can be divided among ranks: the plan of a `TaskSource`."""

    def share(self, worker: int, workers: int) -> Self: ...


P = TypeVar("P", bound=Shareable)


class World:
    """A single process, which computes all tasks."""

    rank: int = 0
    size: int = 1
    restarts: bool = False
    """True if failed processes are restarted automatically."""

    @property
    def is_writer(self) -> bool:
        """True on rank 0, which writes files and logs."""
        return self.rank == 0

    def share(self, plan: P) -> P:
        """This rank's tasks of a plan; may be empty if there are more ranks than tasks."""
        return plan if self.size == 1 else plan.share(self.rank, self.size)

    def part(self, tasks: int) -> range:
        """The indices of this rank's tasks."""
        return share_of(tasks, self.rank, self.size)

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradients of every rank by their sum over ranks, bit by bit the same."""

    def equalise(self, parameters: Sequence[Tensor]) -> None:
        """Copy the values of rank 0 to all ranks."""

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate the parts of all ranks along the first axis, in the order of the tasks."""
        return torch.cat(list(parts))

    def from_writer(self, find: Callable[[], T]) -> T:
        """The result of `find` on rank 0. If it raises a usage error, the other ranks exit with code 2."""
        return find()

    def writer_first(self, find: Callable[[], T]) -> T:
        """The result of `find` on this rank; the others begin once it has raised no error on rank 0."""
        own: list[T] = []
        self.from_writer(lambda: own.append(find()))
        return own[0] if own else find()


class Processes(World):
    """One of several processes. All ranks must call the methods that communicate, in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.restarts = dist.is_torchelastic_launched()

    @torch.no_grad()
    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        # One message instead of one per tensor: they are so small that latency dominates.
        # A rank without tasks has no gradients and contributes zeros.
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        torch._foreach_copy_(grads, _split(flat, grads))
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad

    @torch.no_grad()
    def equalise(self, parameters: Sequence[Tensor]) -> None:
        flat = torch.cat([p.flatten() for p in parameters])
        dist.broadcast(flat, src=0)
        torch._foreach_copy_(list(parameters), _split(flat, parameters))

    def gather(self, parts: Sequence[Tensor]) -> Tensor:
        own = torch.cat(list(parts)).cpu() if parts else None
        found: list[Tensor | None] = [None] * self.size
        dist.all_gather_object(found, own)  # as objects, since the sizes differ
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


ALONE: World = World()


@contextmanager
def process_group(training: Training) -> Iterator[World]:
    """Join the process group if torchrun has started this process; otherwise yield `ALONE`."""
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
        # Destroying an NCCL group is collective. A rank that fails cannot wait for those that still compute;
        # it exits, and torchrun ends them.
        if backend == "gloo":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def leave(code: int) -> NoReturn:
    """Exit at once, as a process that torchrun has started.

    Threads of PyTorch's process groups can abort a rank whose work is done ("terminate called without an
    active exception") while the interpreter shuts down, and torchrun would report a failure.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _own_device(training: Training) -> torch.device | None:
    """Select this rank's GPU, which `cuda` means from here on; None on a CPU."""
    wanted, place = training.torch_device, int(os.environ["LOCAL_RANK"])
    if wanted.type != "cuda":
        return None
    if wanted.index is not None and os.environ["WORLD_SIZE"] != "1":
        raise UsageError(f"device: {wanted} is a single GPU for several processes; use auto, cuda or cpu")
    count = torch.cuda.device_count()
    if place >= count:
        raise UsageError(
            f"process {place} of this machine has no GPU; it has {count}", field="nproc_per_node"
        )
    device = torch.device("cuda", place if wanted.index is None else wanted.index)
    torch.cuda.set_device(device)
    return device


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


SECONDS_BETWEEN = 2.0
"""Seconds between two exchanges of stop requests. torchrun waits 30 s before it kills processes."""


class StopRequest:
    """A context in which SIGTERM, SIGHUP and Ctrl-C are noted, not obeyed. A second Ctrl-C stops at once.

    So does the first while `at_once` is set: as long as nothing has been computed, nothing can be lost.
    `notice` is printed at the first signal otherwise.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

    def __init__(self, notice: str = "") -> None:
        self.signum: int | None = None
        self.at_once = False
        self.notice = notice
        self.before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # handlers can be set there only
            ignored = {signal.getsignal(each) for each in self.SIGNALS[2:]} == {signal.SIG_IGN}  # by nohup
            heard = self.SIGNALS[:2] if ignored else self.SIGNALS
            self.before = {each: signal.signal(each, self._note) for each in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        again = self.signum is not None and signum == signal.SIGINT
        self.signum = signum
        if again or self.at_once:
            raise KeyboardInterrupt
        if self.notice:
            os.write(2, f"{self.notice}\n".encode())  # `print` may not be called again inside itself


class AgreedStop:
    """Stops all processes of a world after the same iteration when any of them receives a request.

    They exchange requests every few seconds, since an exchange costs more than a step of a small network.
    Rank 0 decides how many iterations that is, because clocks differ.
    """

    def __init__(self, request: StopRequest, world: World) -> None:
        self.request, self.world = request, world
        self.exchanged = time.perf_counter()
        self.between = self.left = 1

    def after_step(self) -> int | None:
        """The signal that ends training here, if any. All ranks must call this after each iteration."""
        if self.world.size == 1:
            return self.request.signum
        self.left -= 1
        return self._exchange() if self.left == 0 else None

    def _exchange(self) -> int | None:
        now = time.perf_counter()
        affordable = SECONDS_BETWEEN * self.between / (now - self.exchanged)
        wanted = max(1, min(int(affordable), 2 * self.between))  # the first steps are slower
        requests = self.world.gather([torch.tensor([[self.request.signum or 0, wanted]])])
        self.exchanged = now
        self.between = self.left = int(requests[0, 1])
        return int(requests[:, 0].max()) or None
