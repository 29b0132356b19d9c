"""Export an adapted network to a file that runs without this package."""

from pathaware.inference.export.export import Exported, export, write_script
from pathaware.inference.export.formats import FORMATS

__all__ = ["FORMATS", "Exported", "export", "write_script"]
