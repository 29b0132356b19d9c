"""Run a notebook and write its outputs into it.

python -m tools.run_notebook examples/first_steps.ipynb
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def run(path: Path) -> nbformat.NotebookNode:
    """The executed notebook; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
    notebook.metadata.language_info = {"name": "python"}  # the version would change with every machine
    return notebook


if __name__ == "__main__":
    found = Path(sys.argv[1])
    nbformat.write(run(found), found)
