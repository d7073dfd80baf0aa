"""Values as JSON has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

_NONE: Mapping[str, str] = MappingProxyType({})


def plain(value: Any, names: Mapping[str, str] = _NONE) -> Any:
    """`value` as JSON has it: of a dataclass all its fields, by name.

    names: what fields are called otherwise, as `Table.build` takes them.
    """
    if is_dataclass(value):
        return {
            names.get(one.name, one.name): plain(getattr(value, one.name), names)
            for one in fields(value)
        }
    if isinstance(value, Mapping):
        return {key: plain(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, names) for each in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
