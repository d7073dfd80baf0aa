"""The arguments of a call, put as they were when the module was chunked."""

from __future__ import annotations

import inspect
from typing import Any

Call = tuple[tuple[Any, ...], dict[str, Any]]
NAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature:
    """How a forward was called: which arguments it was given, by place or by name."""

    def __init__(self, forward: Any, places: int, names: list[str]) -> None:
        """places: how many arguments were given by place; names: those by name."""
        self._signature = inspect.signature(forward)
        parameters = self._signature.parameters.values()
        by_place = [each.name for each in parameters if each.kind in NAMED]
        self._places, self._names = by_place[:places], names
        self._plain = len(self._places) == places and set(names) <= {
            each.name
            for each in parameters
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        }

    def arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The same call with the arguments by place or name as they were at first.

        What is given now at its default, and was not given then, is left out; what was
        given then, and is not now, is its default. Calls that do more, and those that
        forward would not take, stay as they are.
        """
        if not self._plain:
            return args, kwargs
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            return args, kwargs
        parameters = self._signature.parameters
        wanted = {*self._places, *self._names}
        for name in wanted - given.keys():
            if parameters[name].default is inspect.Parameter.empty:
                return args, kwargs
            given[name] = parameters[name].default
        if not all(
            _is_default(value, parameters[name])
            for name, value in given.items()
            if name not in wanted
        ):
            return args, kwargs
        places = tuple(given[name] for name in self._places)
        return places, {name: given[name] for name in self._names}


def _is_default(value: Any, parameter: inspect.Parameter) -> bool:
    """Whether a value is a parameter's default, of the same type."""
    default = parameter.default
    if value is default:
        return True
    plain = isinstance(value, bool | int | float | str)
    return plain and type(value) is type(default) and bool(value == default)
