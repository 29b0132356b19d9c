"""Parts of a document that are made from files: each stands between two comments that carry its name."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with these parts put in by name. A part that the document does not have is an error."""
    for name, content in blocks.items():
        begin, end = f"<!-- {name}: made by `make tables` -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the document has no part {name!r}")
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text = re.sub(pattern, lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)  # noqa: B023
    return text
