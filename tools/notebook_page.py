"""Convert a Jupyter notebook to a page in Markdown with its outputs."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def convert(notebook: Path, keep: Callable[[str], str]) -> tuple[str, dict[str, bytes]]:
    """Return the page, and its images by name. `keep` stores HTML and returns a placeholder for it."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            name = f"{notebook.stem.replace('_', '-')}-{len(images) + 1}.png"
            parts.append(_output(output, name, images, keep))
    return "\n\n".join(parts) + "\n", images


def _output(output: dict[str, Any], name: str, images: dict[str, bytes], keep: Callable[[str], str]) -> str:
    """One output: an image if there is one, then HTML, then text."""
    if output["output_type"] == "stream":
        return _text(output["text"])
    data = output["data"]
    if "image/png" in data:
        images[name] = base64.b64decode("".join(data["image/png"]))
        return f"![output](images/{name})"
    if "text/html" in data:
        return keep(_framed("".join(data["text/html"])))
    return _text(data["text/plain"])


def _framed(content: str) -> str:
    """HTML with a style or a script of its own stands in a frame: the page's style would change it."""
    if "<style" not in content:
        return f"<p>{content}</p>"
    return f'<iframe class="output" title="output" srcdoc="{html.escape(content)}"></iframe>'


def _text(lines: str | list[str]) -> str:
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(lines)).rstrip()
    return f'<div class="output" markdown="1">\n\n```text\n{text}\n```\n\n</div>'
