"""The device of a training, and the settings that PyTorch keeps per process."""

from __future__ import annotations

import ctypes
import re
import sys

import torch

from pathaware.core.errors import UsageError
from pathaware.core.settings import short_repr
from pathaware.training.settings import Compute

_THREADS = torch.get_num_threads()  # PyTorch's default, before any run changed it
_PRECISIONS = {"fp32": "highest", "tf32": "high", "bf16": "medium"}  # PyTorch's names


def device(name: str) -> torch.device:
    """The device of this name, after checking that this machine has it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # PyTorch accepts other devices, some of which compute nothing.
    found = re.fullmatch(r"cpu|cuda(?::([0-9]{1,3}))?", name)
    if not found:
        raise UsageError(f"device: {short_repr(name)} must be one of auto, cpu, cuda, cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name != "cpu" and int(found[1] or 0) >= count:
        raise UsageError(f"device: {name} is not available; use auto or cpu")
    return torch.device(name)


def apply(settings: Compute) -> None:
    """Apply the settings that PyTorch keeps per process."""
    chosen = settings.torch_device
    if chosen.index is not None and chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # kernels run on the current GPU
    torch.set_num_threads(settings.threads or _THREADS)
    # On a CPU PyTorch would use bf16 instructions, so that results would depend on the model of the CPU.
    precision = settings.precision if chosen.type == "cuda" else "fp32"
    torch.set_float32_matmul_precision(_PRECISIONS[precision])
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.benchmark = True  # shapes do not change within a run
    if chosen.type == "cpu":
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Have glibc keep up to 2 GiB of freed memory for the next iteration, which needs as much again.

    By default it returns large blocks to the system and gets them back page by page, which takes a tenth of
    the time of an iteration of Conv-4. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # from malloc.h
        library.mallopt(mmap_threshold, 2**25)  # the most that it takes
        library.mallopt(trim_threshold, 2**31 - 1)
        library.mallopt(top_pad, 2**26)
