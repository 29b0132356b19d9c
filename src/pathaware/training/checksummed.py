"""Files that are written atomically; files of tensors that also carry a checksum and cannot run code.

safetensors stores numbers only, but without a checksum. Ours covers everything a reader uses: names, types,
shapes, bytes and metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError

CHECKPOINT = "checkpoint.safetensors"
"""The name of the file of a trained model in the folder of its training."""


class CorruptFile(Exception):
    """A file that is not what was written. The message gives the reason."""


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically: a crash or a full disk leaves the old file or the new one, never half.

    If it cannot be written, the `OSError` names the file.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        path = path.resolve()  # a link stays a link
        if path.exists() and not path.is_file():  # a pipe or a device is written, not replaced
            path.write_bytes(data)
            return
        draft = path.with_name(f"{path.name}.new")
        try:
            draft.write_bytes(data)
            os.replace(draft, path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def replace_folder(draft: Path, folder: Path) -> None:
    """Move a complete folder to its place; one that is there is replaced, or put back if that fails."""
    old = _replaced(folder)
    if folder.exists():
        os.rename(folder, old)  # between these two lines, `restore_folder` finds the old one
    try:
        os.rename(draft, folder)
    except OSError:
        restore_folder(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Repair an interrupted `replace_folder`: restore the old folder, or remove it if there is a new one."""
    old = _replaced(folder)
    if not old.is_dir():
        return
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
    else:
        with suppress(OSError):  # not in a place that cannot be written
            os.rename(old, folder)


def _replaced(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


def write_checksummed(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write atomically, even if the power fails: a reader finds the old file or the new one."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(about, sort_keys=True)
    draft = path.with_name(f"{path.name}.new")
    draft.touch()
    mode = draft.stat().st_mode  # as for every new file; safetensors would let nobody else read it
    try:
        save_file(kept, draft, metadata={"about": text, "sha256": _digest(kept, text)})
        draft.chmod(mode)
    except SafetensorError as error:  # raised also when the disk is full
        raise OSError(str(error).rpartition("error: ")[2]) from None
    _flush(draft)
    os.replace(draft, path)
    _flush(path.parent)


def read_checksummed(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and metadata; raise `CorruptFile` if they are not what was written."""
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


def load_parameters(learner: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Load all parameters and buffers of a learner; raise if an earlier version built another network."""
    try:
        learner.load_state_dict(tensors)
    except RuntimeError:
        own = learner.state_dict()
        differs = [n for n in {**own, **tensors} if n not in own or n not in tensors]
        differs += [n for n in own if n in tensors and own[n].shape != tensors[n].shape]
        message = (
            f"{source} is of another network than this version builds ({differs[0]} differs); train again"
        )
        raise UsageError(message, field="run") from None


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


def _flush(path: Path) -> None:
    """Flush to disk, because a rename can survive a power cut that the renamed bytes did not."""
    if os.name != "posix" and path.is_dir():
        return  # Windows cannot open folders
    file = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)
