"""An ONNX file, for onnxruntime and many others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pathaware.use.export.about import About, as_texts
from pathaware.use.export.classifier import classifier, example
from pathaware.use.export.needed import needed
from pathaware.use.export.quiet import untraceable_refused
from pathaware.use.model import Adapted


def write_onnx(adapted: Adapted, about: About, path: Path) -> None:
    onnx = needed("onnx", "onnx")
    with untraceable_refused("onnx"):
        program = torch.onnx.export(
            classifier(adapted),
            (example(adapted.pictures),),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: "N"}},
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # as it always is with dynamo
        model = program.model_proto
    _forget_origin(model)
    onnx.helper.set_model_props(model, as_texts(about))
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _forget_origin(model: Any) -> None:
    """Lines of our source, and the folders it lies in, are nobody's business and half of the file."""
    graph = model.graph
    for part in (
        model,
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
    ):
        del part.metadata_props[:]
        part.doc_string = ""
