"""Which lines of a program's files add to a variable, or assign an attribute."""

from __future__ import annotations

import ast
import functools
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 1 << 20  # of all files that are looked through
_MOST_LINES = 3  # that are named
_ADDING = {
    *("append", "appendleft", "extend", "extendleft", "insert"),
    *("add", "update", "setdefault", "put", "put_nowait", "push"),
}


class Lines:
    """The lines of some files, as "train.py:12"; at most three of a kind are named.

    Of much source the first files are looked through.
    """

    def __init__(self, files: list[str]) -> None:
        self._adding: dict[str, list[str]] = defaultdict(list)
        self._assigning: dict[str, list[str]] = defaultdict(list)
        left = MOST_BYTES
        for file in dict.fromkeys(files):
            source = _source(file)
            if source is None or len(source) > left:
                continue
            left -= len(source)
            adding, assigning = _lines_of(source)
            name = os.path.basename(file)
            for of, lines in ((self._adding, adding), (self._assigning, assigning)):
                for variable, line in lines:
                    _keep(of[variable], f"{name}:{line}")

    def adding(self, name: str) -> tuple[str, ...]:
        """Where `name` or an attribute of that name is appended to, or has an entry
        assigned, or is made anew of itself, as in `total = total + loss`."""
        return tuple(self._adding.get(name, ()))

    def assigning(self, name: str) -> tuple[str, ...]:
        """Where an attribute or variable of that name is assigned or defined, but not
        as a constant."""
        return tuple(self._assigning.get(name, ()))


_Line = tuple[str, int]  # a name, and where it stands


@functools.lru_cache(256)
def _lines_of(source: bytes) -> tuple[tuple[_Line, ...], tuple[_Line, ...]]:
    """Where names are added to, and where they are assigned."""
    adding: dict[_Line, None] = {}
    assigning: dict[_Line, None] = {}
    for node in ast.walk(_parsed(source)):
        for held in _added_to(node):
            adding[_last_name(held), held.lineno] = None
        assigning.update(dict.fromkeys(_assigned(node)))
    return tuple(adding), tuple(assigning)


def _last_name(value: ast.AST) -> str:
    """ "log" of `a.log` and of `a["log"]`."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
    return ""


def _keep(places: list[str], place: str) -> None:
    if place not in places and len(places) < _MOST_LINES:
        places.append(place)


def _source(file: str) -> bytes | None:
    """None without a file, as of an interactive session."""
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError):
        return None


def _parsed(source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # no Python, or of a newer one
        return ast.Module([], [])


def _assigned(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.FunctionDef):
        yield node.name, node.lineno
    if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Constant):
        return
    for target in node.targets:
        if isinstance(target, ast.Attribute):
            yield target.attr, target.lineno
        elif isinstance(target, ast.Name):
            yield target.id, target.lineno


def _added_to(node: ast.AST) -> list[ast.expr]:
    """What a call or an assignment adds to."""
    match node:
        case ast.Call(func=ast.Attribute(value=held, attr=method)):
            return [held] if method in _ADDING else []
        case ast.AugAssign(target=ast.Subscript(value=held)):
            return [held]
        case ast.AugAssign(target=held):
            return [held]
        case ast.Assign(targets=targets, value=value):
            entries = [e.value for e in targets if isinstance(e, ast.Subscript)]
            return entries + [e for e in targets if _uses(value, e)]
    return []


def _uses(value: ast.expr, target: ast.expr) -> bool:
    """Whether a new value is made of the old one."""
    if not isinstance(target, ast.Name | ast.Attribute):
        return False
    name = _last_name(target)
    alike = (each for each in ast.walk(value) if type(each) is type(target))
    return any(_last_name(each) == name for each in alike)
