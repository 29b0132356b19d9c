"""Load custom networks and methods, which settings name as `package.module:attribute`.

Importing a module runs it, and a run folder from somebody else brings its settings along. So a module is
loaded only if the caller has named it (`trust`), has imported it, or lists it in `PATHAWARE_TRUST=module,…`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from pathaware.core.errors import UsageError

_trusted: set[str] = set()


def trust(tables: Mapping[str, Any]) -> None:
    """Trust the modules that these settings name; call it with settings that the user has given."""
    for table in tables.values():
        for value in table.values() if isinstance(table, Mapping) else ():
            if isinstance(value, str) and ":" in value:
                _trusted.add(value.partition(":")[0])


def load_plugin(setting: str, name: str) -> Any:
    """Return the object `package.module:attribute`; `setting` is the setting that errors name."""
    module, _, attribute = name.partition(":")
    allowed = _trusted | set(os.environ.get("PATHAWARE_TRUST", "").split(","))
    if module not in sys.modules and module not in allowed:
        raise UsageError(f"{setting}: {name} is code; if you trust it, set PATHAWARE_TRUST={module}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{setting}: {name} cannot be imported ({error})") from None
