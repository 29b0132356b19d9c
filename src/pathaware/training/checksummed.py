"""Files of tensors that are never half written, do not rot unnoticed, and cannot run code.

safetensors holds numbers only; what it lacks is a checksum. Ours is over everything a reader uses: names,
types, shapes, bytes, and what the file says about itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class CorruptFile(Exception):
    """A file that is not what was written; the message says how that shows."""


def write_checksummed(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """All of it or nothing, also if the power fails: a reader meets the old file or the new one."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(about, sort_keys=True)
    draft = path.with_name(f"{path.name}.new")
    try:
        save_file(kept, draft, metadata={"about": text, "sha256": _digest(kept, text)})
    except SafetensorError as error:  # of its own kind also where the disk is full
        raise OSError(str(error).rpartition("error: ")[2]) from None
    _flush(draft)
    os.replace(draft, path)
    _flush(path.parent)


def read_checksummed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What was written, or `CorruptFile`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise CorruptFile(str(error).splitlines()[0]) from None
    if "about" not in about or "sha256" not in about:
        raise CorruptFile("it has no checksum")
    if _digest(tensors, about["about"]) != about["sha256"]:
        raise CorruptFile("its checksum is wrong")
    found: dict[str, Any] = json.loads(about["about"])
    return tensors, found


def _digest(tensors: Mapping[str, Tensor], about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    """To the disk itself: a rename can survive a power cut that the renamed bytes did not."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
