"""A griffe extension: examples in docstrings become code blocks of the API pages.

`>>>` begins an example, which ends with an empty line, as for `doctest`; to Markdown it is a quotation.
"""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class DocstringExamples(Extension):
    """Fences the examples of every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Put every example of a docstring between fences.

    >>> fenced("Adds.")
    'Adds.'
    """
    lines: list[str] = []
    inside = False
    for line in [*text.splitlines(), ""]:
        if line.lstrip().startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
