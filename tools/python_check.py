"""Says in one line what is missing when this Python cannot make an environment for pathaware.

Any Python must be able to read this file, Python 2 among them: no annotations, no f-strings, nothing newer.
"""

import os
import re
import sys

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, os.pardir, "pyproject.toml")) as project:
    least = re.findall(r'requires-python = ">=(\d+)\.(\d+)"', project.read())[0]
wanted = ".".join(least)
found = ".".join(str(part) for part in sys.version_info[:3])
otherwise = "; or, with uv: `uv venv --seed --python 3.12 .venv`, then `make` again"

if sys.version_info[:2] < tuple(int(part) for part in least):
    sys.exit(
        "pathaware needs Python " + wanted + " or newer, and " + sys.executable + " is " + found
        + ": install python3.12 and say `make PYTHON=python3.12 ...`" + otherwise
    )  # fmt: skip
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    version = "python" + ".".join(str(part) for part in sys.version_info[:2])
    sys.exit(
        sys.executable + " cannot make virtual environments: install venv (Debian, Ubuntu: apt install "
        + version + "-venv)" + otherwise
    )  # fmt: skip
