"""A `torch.export` program, which PyTorch runs without the code of the network."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from pathaware.use.export.about import About
from pathaware.use.export.classifier import classifier, example
from pathaware.use.export.quiet import untraceable_refused
from pathaware.use.model import Adapted

ABOUT = "about.json"


def write_torch(adapted: Adapted, about: About, path: Path) -> None:
    images = {0: torch.export.Dim("N")}
    with untraceable_refused("torch"):
        program = torch.export.export(
            classifier(adapted), (example(adapted.pictures),), dynamic_shapes={"images": images}
        )
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # names folders of whoever exports
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})
