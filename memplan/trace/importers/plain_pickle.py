"""Pickles that hold plain data only: dicts, lists, tuples, text and numbers.

A pickle is a program for a small stack machine, and some of its instructions import
modules and call what they find there. This machine has only the instructions that
build data; every other one ends the reading. There is no way to allow more.

Dict keys must be text, and tuples hold no containers: hashing nested tuples takes
time that doubles with every level.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from memplan.errors import FormatError
from memplan.files import PathLike

MAX_PROTOCOL = 5
# Honest pickles have an instruction for every three bytes or so.
STEPS_PER_BYTE = 0.45
STEPS_ANYWAY = 1_000_000
# Bytes of memory for what is made, beside the text of texts and the stack.
MEMORY_PER_BYTE = 8
MEMORY_ANYWAY = 64 << 20
_WEIGHTS = {"container": 88, "item": 40, "memo": 90, "text": 56}
MAX_MARKS = 64  # containers open at the same time
MAX_TEXT_BYTES = 64 << 10
MAX_INTEGER_BYTES = 9  # an address above 2^63 takes nine

_REMEDY = "make it with torch.cuda.memory._dump_snapshot"
_STOP, _GET = ord("."), ord("h")
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_SCALARS = frozenset((int, float, str, bool, type(None)))
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_FIXED = {  # instructions whose argument is a number of fixed width
    "BININT": struct.Struct("<i"),
    "BININT1": struct.Struct("<B"),
    "BININT2": struct.Struct("<H"),
    "BINFLOAT": struct.Struct(">d"),
}
_TEXT = {  # instructions followed by a length and that many bytes of UTF-8
    "SHORT_BINUNICODE": struct.Struct("<B"),
    "BINUNICODE": struct.Struct("<I"),
    "BINUNICODE8": struct.Struct("<Q"),
}
_MEMO = {  # instructions that store to, or fetch from, a numbered place
    "BINPUT": struct.Struct("<B"),
    "LONG_BINPUT": struct.Struct("<I"),
    "BINGET": struct.Struct("<B"),
    "LONG_BINGET": struct.Struct("<I"),
}


def load_plain(data: bytes, path: PathLike) -> object:
    """The value a pickle of plain data stands for; runs no code, imports nothing.

    Shared objects stay shared: walk the value through a cache of what was seen.
    Raises FormatError, naming the instruction and its byte, for anything that is
    not plain data, is cut off, goes on after its end, or passes a limit.
    """
    machine = _Machine(data, path)
    try:
        return machine.run()
    finally:
        vars(machine).clear()  # its table knows it: only a collection would free it


class _Machine:
    """The stack machine. `at` is the byte of the instruction in progress."""

    def __init__(self, data: bytes, path: PathLike) -> None:
        self.data, self.path = data, path
        self.at = self.next = 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under each open mark
        self.memo: dict[int, Any] = {}
        self.memory = MEMORY_PER_BYTE * len(data) + MEMORY_ANYWAY  # that is left
        self.steps = self._table()

    def run(self) -> object:
        data, end, steps, memo = self.data, len(self.data), self.steps, self.memo
        most = int(STEPS_PER_BYTE * end) + STEPS_ANYWAY
        for _ in range(most):
            if self.next >= end:
                raise FormatError(self.path, f"cut off at byte {end}", _REMEDY)
            self.at = self.next
            code = data[self.at]
            self.next += 1
            if code == _STOP:
                return self._result()
            # Every second one fetches what is known: worth a short cut.
            if code == _GET and self.next < end and data[self.next] in memo:
                self.stack.append(memo[data[self.next]])
                self.next += 1
                continue
            step = steps[code]
            if step is None:
                self._refuse(code)
            step()
        self._fail(f"takes more than {most} instructions in {end} bytes")

    def _result(self) -> object:
        if self.below or len(self.stack) != 1:
            self._fail(f"ends with {len(self.stack)} values on its stack, not one")
        if self.next != len(self.data):
            self._fail(f"goes on for {len(self.data) - self.next} bytes after its end")
        return self.stack[0]

    def _refuse(self, code: int) -> NoReturn:
        name = _NAMES.get(code, f"0x{code:02x}")
        problem = f"contains opcode {name} at byte {self.at}; plain data expected"
        raise FormatError(self.path, problem, _REMEDY)

    def _fail(self, problem: str) -> NoReturn:
        raise FormatError(self.path, f"byte {self.at}: the pickle {problem}", _REMEDY)

    def _table(self) -> list[Any]:
        """What to do for each of the 256 codes; None: refuse."""
        named: dict[str, Callable[[], None]] = {
            "PROTO": self._protocol,
            "FRAME": lambda: self._skip(8),
            "MARK": self._mark,
            "LONG1": self._long,
            "EMPTY_LIST": lambda: self._push_container([]),
            "EMPTY_DICT": lambda: self._push_container({}),
            "EMPTY_TUPLE": lambda: self._tuple([]),
            "TUPLE": lambda: self._tuple(self._to_mark()),
            "TUPLE1": lambda: self._tuple(self._pop(1)),
            "TUPLE2": lambda: self._tuple(self._pop(2)),
            "TUPLE3": lambda: self._tuple(self._pop(3)),
            "APPEND": lambda: self._extend(self._pop(1)),
            "APPENDS": lambda: self._extend(self._to_mark()),
            "SETITEM": lambda: self._set_items(self._pop(2)),
            "SETITEMS": lambda: self._set_items(self._to_mark()),
            "MEMOIZE": lambda: self._put(len(self.memo)),
            "BINPUT": lambda: self._put(self._unpack(_MEMO["BINPUT"])),
            "LONG_BINPUT": lambda: self._put(self._unpack(_MEMO["LONG_BINPUT"])),
            "BINGET": lambda: self._get(self._unpack(_MEMO["BINGET"])),
            "LONG_BINGET": lambda: self._get(self._unpack(_MEMO["LONG_BINGET"])),
        }
        for name, value in _CONSTANTS.items():
            named[name] = lambda value=value: self.stack.append(value)  # type: ignore[misc]
        for name, form in _FIXED.items():
            named[name] = lambda form=form: self._number(form)  # type: ignore[misc]
        for name, form in _TEXT.items():
            named[name] = lambda form=form: self._text(form)  # type: ignore[misc]
        codes = {name: code for code, name in _NAMES.items()}
        table: list[Any] = [None] * 256
        for name, step in named.items():
            table[codes[name]] = step
        return table

    def _take(self, count: int) -> int:
        """Where the next `count` bytes begin; they are consumed."""
        begin = self.next
        if count > len(self.data) - begin:
            self._fail("is cut off")
        self.next = begin + count
        return begin

    def _skip(self, count: int) -> None:
        self._take(count)

    def _unpack(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self.data, self._take(form.size))[0]
        return value

    def _number(self, form: struct.Struct) -> None:
        self.stack.append(form.unpack_from(self.data, self._take(form.size))[0])

    def _protocol(self) -> None:
        version = self.data[self._take(1)]
        if version > MAX_PROTOCOL:
            self._fail(f"is of protocol {version}; up to {MAX_PROTOCOL} are known")

    def _long(self) -> None:
        length = self.data[self._take(1)]
        if length > MAX_INTEGER_BYTES:
            self._fail(f"holds an integer of {length} bytes")
        begin = self._take(length)
        digits = self.data[begin : begin + length]
        self.stack.append(int.from_bytes(digits, "little", signed=True))

    def _text(self, form: struct.Struct) -> None:
        length = self._unpack(form)
        if length > MAX_TEXT_BYTES:
            self._fail(f"holds a text of {length} bytes")
        begin = self._take(length)
        self._pay("text")
        try:
            text = self.data[begin : begin + length].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._fail("holds a text that is not UTF-8")
        self.stack.append(text)

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            self._fail("takes from an empty stack")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def _mark(self) -> None:
        if len(self.below) == MAX_MARKS:
            self._fail(f"opens more than {MAX_MARKS} containers in each other")
        self.below.append(self.stack)
        self.stack = []

    def _to_mark(self) -> list[Any]:
        if not self.below:
            self._fail("goes back to a mark that is not there")
        taken, self.stack = self.stack, self.below.pop()
        return taken

    def _pay(self, what: str, count: int = 1) -> None:
        """Take what is made off the memory that is left."""
        self.memory -= _WEIGHTS[what] * count
        if self.memory < 0:
            self._fail(f"holds too much for its {len(self.data)} bytes")

    def _push_container(self, container: object) -> None:
        self._pay("container")
        self.stack.append(container)

    def _tuple(self, items: list[Any]) -> None:
        self._pay("container")
        if not set(map(type, items)) <= _SCALARS:
            self._fail("puts a container into a tuple")
        self.stack.append(tuple(items))

    def _extend(self, items: list[Any]) -> None:
        if not self.stack or type(self.stack[-1]) is not list:
            self._fail("appends to what is not a list")
        self.stack[-1].extend(items)

    def _set_items(self, items: list[Any]) -> None:
        if not self.stack or type(self.stack[-1]) is not dict:
            self._fail("sets an item of what is not a dict")
        if len(items) % 2:
            self._fail("has a key without a value")
        keys = items[::2]
        if set(map(type, keys)) - {str}:
            self._fail("has a key that is not text")
        self._pay("item", len(keys))
        self.stack[-1].update(zip(keys, items[1::2], strict=True))

    def _put(self, index: int) -> None:
        if not self.stack:
            self._fail("stores what is not there")
        self._pay("memo")
        self.memo[index] = self.stack[-1]

    def _get(self, index: int) -> None:
        if index not in self.memo:
            self._fail(f"fetches value {index}, which it never stored")
        self.stack.append(self.memo[index])
