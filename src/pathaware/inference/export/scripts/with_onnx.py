"""An ONNX file, opened by onnxruntime."""

from collections.abc import Callable
from typing import Any


def opened(path: str) -> tuple[dict[str, Any], Callable[..., Any]]:
    """What the file says of itself, and the way from pixels `[N, C, size, size]` to probabilities."""
    import json

    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    kept = session.get_modelmeta().custom_metadata_map
    about = {key: json.loads(text) for key, text in kept.items()}
    return about, lambda images: session.run(["probabilities"], {"images": images})[0]
