"""Declared types of what files hold: checks of values against them, and their JSON schema.

A schema is a dataclass, or a type that JSON and TOML can hold: numbers, texts, `Literal`, `list[T]`,
`tuple[T, ...]`, `dict[str, T]`, unions of these with None, and `Any`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pathaware.core.errors import UsageError, no_such_setting
from pathaware.core.settings import coerce, short_repr, type_hints

S = TypeVar("S")


def read(name: str, value: Any, hint: Any) -> Any:
    """Check a value from a file against its declared type and return it, converted where that loses nothing.

    >>> read("rates", [1, 0.5], list[float])
    [1.0, 0.5]
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType) and value is not None:
        containers = [each for each in arguments if _is_container(each)]
        return read(name, value, containers[0]) if containers else coerce(name, value, hint)
    if origin is list and isinstance(value, list):
        return [read(f"{name}[{i}]", each, arguments[0]) for i, each in enumerate(value)]
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(read(f"{name}[{i}]", each, arguments[0]) for i, each in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {key: read(f"{name}.{key}", each, arguments[1]) for key, each in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return read_table(name, value, hint)
    if _is_container(hint):
        wanted = "a list" if origin in (list, tuple) else "a table"
        raise UsageError(f"{name}: {short_repr(value)} is not allowed; must be {wanted}")
    return coerce(name, value, hint)


def _is_container(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, dict) or dataclasses.is_dataclass(hint)


def read_table(table: str, values: Mapping[str, Any], kind: type[S], *, known_only: bool = True) -> S:
    """Build a dataclass from a table of a file, checking every value.

    Names that the dataclass does not have are an error, or left out if not `known_only`: files of later
    versions may have more.
    """
    hints = type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    if known_only:
        for name in values:
            if name not in fields:
                raise no_such_setting(name, f"[{table}]", fields)
    for name, field in fields.items():
        if name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise UsageError(f"[{table}]: {name} is missing")
    return kind(**{name: read(name, values[name], hints[name]) for name in fields if name in values})


_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def json_schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a declared type. TOML has no null, so None is the text "none"."""
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) in (Union, UnionType):
        return {"anyOf": [json_schema(each) for each in get_args(hint)]}
    if dataclasses.is_dataclass(hint):
        hints, words = type_hints(hint), described(hint)
        fields = {field.name: field.default for field in dataclasses.fields(hint)}
        return table_schema({name: (hints[name], default) for name, default in fields.items()}, words)
    return {"const": "none"} if hint is NoneType else {"type": _TYPES[hint]}


def table_schema(settings: Mapping[str, tuple[Any, Any]], words: Mapping[str, str]) -> dict[str, Any]:
    """The JSON schema of a table of settings, given by their types and defaults, and what they mean."""
    properties = {}
    for name, (hint, default) in settings.items():
        meaning = {"description": words[name]} if name in words else {}
        shown = "none" if default is None else default
        properties[name] = {**json_schema(hint), "default": shown, **meaning}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def described(kind: Any) -> dict[str, str]:
    """The description of each setting in the docstrings of a class and its bases: items "- `name`: text"."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        for item in re.split(r"\n\s*- (?=`)", vars(owner).get("__doc__") or "")[1:]:
            text = " ".join(item.partition("\n\n")[0].split())
            for names, words in re.findall(r"((?:`\w+`(?:, )?)+): (.*?)(?:; (?=`\w+`[:,])|$)", text):
                found |= dict.fromkeys(re.findall(r"`(\w+)`", names), words.rstrip("."))
    return found
