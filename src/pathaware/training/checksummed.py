"""Files of tensors that carry a checksum and cannot run code.

safetensors stores numbers only, but without a checksum. Ours covers everything a reader uses: names, types,
shapes, bytes and metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.reading import must_be_plain
from pathaware.core.schema import read, read_table
from pathaware.core.writing import replace_file

CHECKPOINT = "checkpoint.safetensors"
"""The name of the file of a trained model in the folder of its training."""


S = TypeVar("S")


class CorruptFile(Exception):
    """A file that is not what was written. The message gives the reason."""


def write_checksummed(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and what is known about them; a link of that name is replaced, not followed."""
    from safetensors.torch import save

    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(about, sort_keys=True)
    replace_file(path, save(kept, metadata={"about": text, "sha256": _digest(kept, text)}), path.parent)


def read_checksummed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and metadata; raise `CorruptFile` if they are not what was written."""
    from safetensors import SafetensorError, safe_open

    try:
        must_be_plain(path)
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise CorruptFile(getattr(error, "strerror", None) or str(error).splitlines()[0]) from None
    if "about" not in about or "sha256" not in about:
        raise CorruptFile("it has no checksum")
    if _digest(tensors, about["about"]) != about["sha256"]:
        raise CorruptFile("its checksum is wrong")
    try:
        return tensors, read("metadata", json.loads(about["about"]), dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise CorruptFile(str(error)) from None


def read_declared(path: Path, kind: type[S], field: str | None = "run") -> tuple[dict[str, Tensor], S]:
    """Read tensors and metadata of a declared type; the error names the file and what is wrong."""
    try:
        tensors, about = read_checksummed(path)
        return tensors, read_table("metadata", about, kind, known_only=False)
    except (CorruptFile, UsageError) as error:
        raise UsageError(f"{path} cannot be read ({error})", field) from None


def must_be_finite(tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise if a tensor has numbers that are infinite or NaN."""
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UsageError(f"{source}: {name} has numbers that are not finite", field="run")


def load_parameters(learner: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load all parameters and buffers of a learner; raise if an earlier version built another network."""
    must_be_finite(tensors, source)
    own = learner.state_dict()
    differs = [n for n in {**own, **tensors} if n not in own or n not in tensors]
    differs += [n for n in own if n in tensors and _kind(own[n]) != _kind(tensors[n])]
    if differs:
        message = (
            f"{source} is of another network than this version builds ({differs[0]} differs); train again"
        )
        raise UsageError(message, field="run")
    learner.load_state_dict(tensors)


def _kind(value: Tensor) -> tuple[torch.Size, bool]:
    """The shape and kind that a tensor must share with another; a network may be saved in half precision."""
    return value.shape, value.is_floating_point()


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of the names, types, shapes and values of these tensors."""
    return _digest({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, "")


def _digest(tensors: Mapping[str, Tensor], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
