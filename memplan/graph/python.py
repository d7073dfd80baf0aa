"""A tape's graph as statements in Python, which need torch alone."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from memplan.graph.script import CODES, NoTapeError

BOUND = "t"  # what statements call the list of bound tensors
# What graphs have as integers, by the type that a schema says.
KINDS = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
}
NAMED = {
    kind: {code: value for value, code in CODES.items() if isinstance(value, named)}
    for kind, named in KINDS.items()
}


def statements(source: str, numbers: Sequence[float]) -> tuple[list[str], list[str]]:
    """The statements of a tape's graph, and expressions for what it returns.

    source, numbers: as the tape has them. The statements call torch.ops.aten `aten` and
    the list of bound tensors `t`; inputs have the names that they have in the graph.
    Values are deleted after their last use, as torch's interpreter does it. Raises
    NoTapeError for operators that torch alone does not have.
    """
    return _Statements(source, numbers).all()


class _Statements:
    def __init__(self, source: str, numbers: Sequence[float]) -> None:
        self._graph = torch._C.parse_ir(source)
        self._numbers = numbers
        inputs = [each.debugName() for each in self._graph.inputs()]
        self._words = {name: argument(name) for name in inputs}
        self._lists: dict[str, list[str]] = {}  # the values in lists, by their name
        self._own: set[str] = set()  # values that Python has a variable for

    def all(self) -> tuple[list[str], list[str]]:
        rows: list[tuple[str, list[str]]] = []  # a statement, and what it takes
        returned: list[str] = []
        for node in self._graph.nodes():
            taken = [each.debugName() for each in node.inputs()]
            if node.kind() == "prim::TupleConstruct":
                returned = taken
            elif node.kind().startswith("prim::"):
                self._constructed(node, taken)
            else:
                inside = [x for each in taken for x in self._lists.get(each, [each])]
                rows.append((self._called(node, taken), inside))
        last = {name: i for i, (_, taken) in enumerate(rows) for name in taken}
        for name in self._own.intersection(returned):
            last[name] = len(rows)
        ends: dict[int, list[str]] = {}
        for name, at in last.items():
            if name in self._own:
                ends.setdefault(at, []).append(self._words[name])
        lines = []
        for i, (line, _) in enumerate(rows):
            gone = ends.get(i, [])
            lines += [line, *([f"del {', '.join(gone)}"] if gone else [])]
        return lines, [self._words[name] for name in returned]

    def _constructed(self, node: Any, taken: list[str]) -> None:
        names = [each.debugName() for each in node.outputs()]
        if node.kind() == "prim::Constant":
            self._words[names[0]] = _literal(node.output().toIValue())
        elif node.kind() == "prim::ListConstruct":
            self._lists[names[0]] = [
                x for each in taken for x in self._lists.get(each, [each])
            ]
            self._words[names[0]] = f"[{', '.join(self._words[x] for x in taken)}]"
        elif node.kind() == "prim::ListUnpack" and taken == ["numbers"]:
            pairs = zip(names, self._numbers, strict=True)
            self._words.update((name, _literal(number)) for name, number in pairs)
        elif node.kind() == "prim::ListUnpack" and taken == ["tensors"]:
            self._words.update((x, f"{BOUND}[{i}]") for i, x in enumerate(names))
        else:
            raise NoTapeError(f"the operator {node.kind()}")

    def _called(self, node: Any, taken: list[str]) -> str:
        """A statement that runs an operator."""
        words = [self._words[name] for name in taken]
        call = self._call(node, words)
        names = []
        for each in node.outputs():
            name = f"v{len(self._own)}"
            self._words[each.debugName()] = name
            if each.uses():
                self._own.add(each.debugName())
            names.append(name if each.uses() else "_")
        return call if set(names) == {"_"} else f"{', '.join(names)} = {call}"

    def _call(self, node: Any, words: list[str]) -> str:
        kind = node.kind()
        if kind == "aten::__getitem__":
            return "{}[{}]".format(*words)
        schema = torch._C.parse_schema(node.schema())
        if not kind.startswith("aten::"):
            raise NoTapeError(f"the operator {kind}")
        args = []
        for taken, given in zip(schema.arguments, words, strict=True):
            kind_of = re.search("|".join(KINDS), str(taken.real_type))
            word = _named(kind_of.group(), given) if kind_of else given
            if not taken.kwarg_only:
                args.append(word)
            elif taken.is_out or word != _literal(taken.default_value):
                args.append(f"{taken.name}={word}")
        name = f"{kind.removeprefix('aten::')}.{schema.overload_name or 'default'}"
        return f"aten.{name}({', '.join(args)})"


def argument(name: str) -> str:
    """An input's name as a parameter's that no other name is like."""
    word = re.sub(r"\W", "_", name)
    clashes = (
        word in {"self", "torch", "aten", BOUND, "_one"}
        or keyword.iskeyword(word)
        or re.fullmatch(r"v?\d.*", word)
    )
    return f"{word}_" if clashes else word


def _named(kind: str, word: str) -> str:
    """An integer of a graph as torch's object of this kind."""
    return str(NAMED[kind][int(word)]) if word.isdigit() else word


def _literal(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return repr(value)
