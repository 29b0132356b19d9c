"""The formats by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.errors import UsageError
from pathaware.use.export.about import About
from pathaware.use.export.needed import needed
from pathaware.use.export.onnx_file import write_onnx
from pathaware.use.export.safetensors_file import write_safetensors
from pathaware.use.export.scripts import with_onnx, with_safetensors, with_torch
from pathaware.use.export.torch_file import write_torch
from pathaware.use.model import Adapted


@dataclass(frozen=True)
class Format:
    """How a file is written, and how a stranger opens it."""

    name: str
    suffix: str
    write: Callable[[Adapted, About, Path], None]
    opened: Callable[[str], tuple[dict[str, Any], Callable[..., Any]]]
    packages: tuple[str, ...]
    """What it needs besides PyTorch, here or where the file is used."""

    def refuse_if_packages_are_missing(self) -> None:
        for package in self.packages:
            needed(self.name, package)


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("onnx", ".onnx", write_onnx, with_onnx.opened, ("onnx", "onnxscript", "onnxruntime")),
        Format("torch", ".pt2", write_torch, with_torch.opened, ()),
        Format("safetensors", ".safetensors", write_safetensors, with_safetensors.opened, ("safetensors",)),
    )
}


def format_called(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(f"--to {name}: must be {', '.join(FORMATS)}")
    return FORMATS[name]
