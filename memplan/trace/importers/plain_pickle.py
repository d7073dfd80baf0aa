"""Pickles that hold plain data only: dicts, lists, tuples, text and numbers.

A pickle is a program for a small stack machine, and some of its instructions import
modules and call what they find there. The machine here (memplan/native/plain) has only
the instructions that build data; every other one ends the reading. There is no way to
allow more.

Dict keys must be text, and tuples hold no containers: hashing nested tuples takes
time that doubles with every level.
"""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING

import numpy as np

from memplan.errors import FormatError
from memplan.files import PathLike

if TYPE_CHECKING:
    from memplan.native._plain import Plain

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
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}


def value_of(plain: Plain, cell: int) -> object:
    """A part of what a pickle stands for, as Python objects.

    Shared objects stay shared: walk the value through a cache of what was seen.
    """
    return plain.values(np.array([cell], dtype=np.uint64))[0]


def parse_plain(data: bytes, path: PathLike, text_bytes: int = MAX_TEXT_BYTES) -> Plain:
    """What a pickle of plain data stands for; runs no code, imports nothing.

    Not yet Python objects: those of a snapshot would take up ten times the file. Raises
    FormatError, naming the instruction and its byte, for anything that is not plain
    data, is cut off, goes on after its end, or passes a limit. text_bytes: of a text.
    """
    from memplan.native._plain import Limits, Plain

    limits = Limits(
        memory=MEMORY_PER_BYTE * len(data) + MEMORY_ANYWAY,
        steps=int(STEPS_PER_BYTE * len(data)) + STEPS_ANYWAY,
        marks=MAX_MARKS,
        text_bytes=text_bytes,
        long_bytes=MAX_INTEGER_BYTES,
        protocol=MAX_PROTOCOL,
        **_WEIGHTS,
    )
    plain = Plain(data, limits)
    if plain.fault is None:
        return plain
    at, opcode, cut, problem = plain.fault
    if cut:
        raise FormatError(path, f"cut off at byte {at}", _REMEDY)
    if opcode >= 0:
        name = _NAMES.get(opcode, f"0x{opcode:02x}")
        problem = f"contains opcode {name} at byte {at}; plain data expected"
        raise FormatError(path, problem, _REMEDY)
    raise FormatError(path, f"byte {at}: the pickle {problem}", _REMEDY)
