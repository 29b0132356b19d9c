"""Networks and methods of your own, named in settings as `package.module:attribute`.

To import a module is to run it, and settings come with runs that others have trained. So only a module is
imported that the caller has named, has imported, or trusts by `PATHAWARE_TRUST=module,…`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from pathaware.errors import UsageError

_trusted: set[str] = set()


def trust(tables: Mapping[str, Any]) -> None:
    """Trust the modules that these settings name: to be called where a person has given them."""
    for table in tables.values():
        for value in table.values() if isinstance(table, Mapping) else ():
            if isinstance(value, str) and ":" in value:
                _trusted.add(value.partition(":")[0])


def imported(kind: str, name: str) -> Any:
    """What `package.module:attribute` is; `kind` names the setting in errors."""
    module, _, attribute = name.partition(":")
    allowed = _trusted | set(os.environ.get("PATHAWARE_TRUST", "").split(","))
    if module not in sys.modules and module not in allowed:
        raise UsageError(f"{kind}: {name} is code; if you trust it, set PATHAWARE_TRUST={module}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{kind}: {name} cannot be imported ({error})") from None
