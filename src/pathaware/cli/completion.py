"""Names that a shell completes: methods, data sets, presets, trained models.

Nothing here imports PyTorch, which would take seconds at every press of Tab.
"""

from __future__ import annotations

import re
from pathlib import Path

from pathaware.core.settings import data_dir
from pathaware.training.presets import all_presets

DATA_SETS = ("miniimagenet", "cifar-fs", "fc100", "tieredimagenet", "omniglot", "glyphs")
"""Known data sets: `pathaware.data.IMPORTERS`, and glyphs, which need no import."""

_PACKAGE = Path(__file__).parents[1]


def complete_method(incomplete: str) -> list[str]:
    """Methods by name, read from the source because importing them takes seconds."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((_PACKAGE / "methods").glob("*.py")))
    found = (re.search(r'^METHOD = Method\(\s*(?:name=)?"([^"]+)"', text, re.MULTILINE) for text in texts)
    return _beginning(incomplete, [match[1] for match in found if match])


def complete_data(incomplete: str) -> list[str]:
    """The known data sets, and those that were imported."""
    imported = (path.parent.name for path in data_dir().glob("[!.]*/store.json"))
    return _beginning(incomplete, [*DATA_SETS, *imported])


def complete_preset(incomplete: str) -> list[str]:
    return _beginning(incomplete, all_presets())


def complete_run(incomplete: str) -> list[str]:
    """Run folders in `runs`; other folders are completed by the shell."""
    return _beginning(incomplete, [str(path.parent) for path in Path("runs").glob("*/config.toml")])


def complete_model(incomplete: str) -> list[str]:
    """The models that ship with the package, and run folders in `runs`."""
    names = [path.parent.name for path in (_PACKAGE / "inference/shipped").glob("*/config.toml")]
    return _beginning(incomplete, names) + complete_run(incomplete)


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
