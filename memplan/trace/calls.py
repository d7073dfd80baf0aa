"""The calls of modules in a trace, and the tensors that autograd saved in them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from memplan.arrays import Int64Array
from memplan.core.recompute import Root
from memplan.errors import FormatError
from memplan.files import PathLike
from memplan.formats.strictjson import shown
from memplan.formats.table import Table

NO_CALL = -1
AGAIN = "its call is made again already"  # an obstacle: the program does so
_TIMES = ("begin_ns", "end_ns")
_CALL = ("module", "parent", *_TIMES, "cost_ns", "flags")
_SAVED = ("call", "address", "packed_ns", "unpacked_ns", "cached_ns")
_DROPPED = "dropped_ns"


class Flag(enum.IntFlag):
    """What is known of a call.

    GRAD: gradients were enabled. CHANGED: a tensor that it was given was changed in
    place, before the backward pass came to the call.
    """

    GRAD = 1
    CHANGED = 2


@dataclass(frozen=True)
class Module:
    """A module that was called.

    root: index into `roots`. path: in its root, "" for the root. kind: class name.
    children: of a plain `torch.nn.Sequential`, how many; else 0. obstacle: why its
    calls cannot be made again, "" if they can. written: its own buffers that its calls
    changed, and tensors among its attributes that they replaced; written_bytes: of
    each.
    """

    root: int
    path: str
    kind: str
    children: int
    obstacle: str
    written: tuple[str, ...]
    written_bytes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Calls:
    """n calls of modules in the order made, and k tensors saved for the backward pass.

    Times are those of the trace's events; addresses are those of its blocks.

    module: index into `modules`; parent: the call around it or NO_CALL; begin_ns,
    end_ns: half-open; cost_ns: how long it took on its device, 0 where that is not
    known; flags: of Flag; int64, shape (n,) each. inputs, outputs: the
    addresses of the tensors given and returned, for each call.
    saved_call: the innermost call that saved it; saved_address; packed_ns: when;
    unpacked_ns: when the backward pass first needed it, 0 for never; cached_ns: until
    when autocast's cache held it as well, 0 if it did not; dropped_ns: from when on
    autograd alone held its storage, 0 where that is not known; int64, shape (k,).
    """

    roots: tuple[Root, ...]
    modules: tuple[Module, ...]
    module: Int64Array
    parent: Int64Array
    begin_ns: Int64Array
    end_ns: Int64Array
    cost_ns: Int64Array
    flags: Int64Array
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    saved_call: Int64Array
    saved_address: Int64Array
    packed_ns: Int64Array
    unpacked_ns: Int64Array
    cached_ns: Int64Array
    dropped_ns: Int64Array

    def __len__(self) -> int:
        return len(self.module)

    def to_json(self) -> dict[str, object]:
        """As plain data: modules as objects, calls and saved tensors as columns."""
        names = (*_SAVED, _DROPPED)
        saved = (
            *(self.saved_call, self.saved_address),
            *(self.packed_ns, self.unpacked_ns, self.cached_ns, self.dropped_ns),
        )
        return {
            "roots": [asdict(each) for each in self.roots],
            "modules": [asdict(each) for each in self.modules],
            "calls": {name: getattr(self, name).tolist() for name in _CALL},
            "inputs": self.inputs,
            "outputs": self.outputs,
            "saved": {n: v.tolist() for n, v in zip(names, saved, strict=True)},
        }


@dataclass(frozen=True)
class _Named:
    roots: tuple[Root, ...]
    modules: tuple[Module, ...]


def calls_from_json(path: PathLike, value: object) -> Calls:
    """The Calls of a trace's metadata. Raises FormatError naming what is wrong."""
    keys = frozenset({"roots", "modules", "calls", "inputs", "outputs", "saved"})
    table = Table.of(value, path, keys, "calls")
    named = Table(path, "calls", dict(table.fields)).build(_Named)
    _check_below(table, "modules[].root", [m.root for m in named.modules], named.roots)
    calls = table.table("calls", frozenset(_CALL))
    saved = table.table("saved", frozenset(_SAVED), frozenset({_DROPPED}))
    known = [_DROPPED] * (_DROPPED in saved.fields)  # older traces lack it
    call, tensors = _columns(calls, _CALL), _columns(saved, (*_SAVED, *known))
    count = len(call["module"])
    _check_below(table, "calls.module", call["module"], named.modules)
    order = np.arange(count)
    if (call["parent"] >= order).any():
        raise table.error("calls.parent", "names a call that begins later")
    if (call["begin_ns"] > call["end_ns"]).any():
        raise table.error("calls.end_ns", "lies before begin_ns")
    _check_below(table, "saved.call", tensors["call"], order)
    addresses = {
        name: tuple(
            tuple(
                calls.integers(_list(table, name, row), f"{name}[{i}]".format).tolist()
            )
            for i, row in enumerate(table.rows(name))
        )
        for name in ("inputs", "outputs")
    }
    for name, rows in addresses.items():
        if len(rows) != count:
            raise table.error(name, f"has {len(rows)} rows for {count} calls")
    return Calls(
        roots=named.roots,
        modules=named.modules,
        module=call["module"],
        parent=call["parent"],
        begin_ns=call["begin_ns"],
        end_ns=call["end_ns"],
        cost_ns=call["cost_ns"],
        flags=call["flags"],
        inputs=addresses["inputs"],
        outputs=addresses["outputs"],
        saved_call=tensors["call"],
        saved_address=tensors["address"],
        packed_ns=tensors["packed_ns"],
        unpacked_ns=tensors["unpacked_ns"],
        cached_ns=tensors["cached_ns"],
        dropped_ns=tensors.get(_DROPPED, np.zeros_like(tensors["call"])),
    )


def _columns(table: Table, names: Sequence[str]) -> dict[str, Int64Array]:
    """Columns of one length."""
    found = {
        name: table.integers(table.rows(name), f"{name}[{{}}]".format, NO_CALL)
        for name in names
    }
    if len({len(column) for column in found.values()}) > 1:
        raise table.error(names[0], "and its neighbours differ in length")
    return found


def _list(table: Table, name: str, row: object) -> list[Any]:
    if not isinstance(row, list):
        raise FormatError(table.path, f"calls.{name}: {shown(row)} is not a list")
    return row


def _check_below(
    table: Table, name: str, values: Sequence[int] | Int64Array, of: Sequence[Any] | Any
) -> None:
    numbers = np.asarray(values, dtype=np.int64)
    if ((numbers < 0) | (numbers >= len(of))).any():
        raise table.error(name, f"is not from 0 to {len(of) - 1}")
