"""An adapted network as a file that runs without this package, checked against it."""

from pathaware.use.export.export import Exported, export
from pathaware.use.export.formats import FORMATS
from pathaware.use.export.script import write_script

__all__ = ["FORMATS", "Exported", "export", "write_script"]
