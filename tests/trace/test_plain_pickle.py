"""Pickles of plain data, and those that are more than that."""

from __future__ import annotations

import collections
import decimal
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import FormatError
from memplan.trace.importers import plain_pickle
from memplan.trace.importers.plain_pickle import parse_plain, value_of

PROTOCOLS = range(2, 6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 71), (1 << 71) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
)
plain = st.recursive(
    scalars | st.tuples(scalars, scalars) | st.lists(scalars, max_size=5).map(tuple),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=30,
)


def load_plain(data: bytes, name: str) -> object:
    """The value that a pickle stands for."""
    parsed = parse_plain(data, name)
    return value_of(parsed, parsed.root)


@given(value=plain, protocol=st.sampled_from(PROTOCOLS))
def test_plain_data_comes_back_as_it_was(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    found = load_plain(data, "f")
    assert found == value
    assert pickle.dumps(found, protocol=protocol) == pickle.dumps(
        pickle.loads(data), protocol=protocol
    )


def test_what_was_shared_stays_shared() -> None:
    frames = [{"name": "f"}]
    found = load_plain(pickle.dumps([frames, frames]), "f")
    assert isinstance(found, list)
    assert found[0] is found[1]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


@pytest.mark.parametrize(
    ("value", "opcode"),
    [
        (Evil(), "STACK_GLOBAL"),
        ({"segments": [Evil()]}, "STACK_GLOBAL"),
        (collections.OrderedDict(a=1), "STACK_GLOBAL"),
        (decimal.Decimal(1), "STACK_GLOBAL"),
        (os.system, "STACK_GLOBAL"),
        ({1, 2}, "EMPTY_SET"),
        (frozenset({1}), "FROZENSET"),
        (b"bytes", "SHORT_BINBYTES"),
        (1 << 3000, "LONG4"),
    ],
)
def test_whatever_is_no_plain_data_is_refused_by_name(
    value: object, opcode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = rf"f: contains opcode {opcode} at byte \d+; plain data expected"
    with pytest.raises(FormatError, match=expected):
        load_plain(pickle.dumps(value, protocol=4), "f")
    assert not Path("owned").exists()


@pytest.mark.parametrize("code", pickletools.opcodes, ids=lambda code: code.name)
def test_every_instruction_is_known_plain_or_refused(
    code: pickletools.OpcodeInfo,
) -> None:
    safe = {
        *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1"),
        *("TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
        *("MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    }
    data = code.code.encode("latin-1") + b"\0" * 20
    with pytest.raises(FormatError) as caught:
        load_plain(data, "f")
    refused = f"contains opcode {code.name} at byte 0" in str(caught.value)
    assert refused == (code.name not in safe)


def test_nested_tuples_cannot_be_made_into_a_bomb() -> None:
    bomb = b"\x80\x04)" + b"\x94h\x00\x86" * 60 + b"."
    with pytest.raises(FormatError, match="a container into a tuple"):
        load_plain(bomb, "f")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off at byte 0"),
        (b"\x80", "is cut off"),
        (b"\x80\x06N.", "of protocol 6; up to 5"),
        (b"\x80\x04N", "cut off at byte 3"),
        (b"\x80\x04N.N", "goes on for 1 bytes after its end"),
        (b"\x80\x04NN.", "ends with 2 values"),
        (b"\x80\x04.", "ends with 0 values"),
        (b"\x80\x04(N.", "ends with 1 values"),
        (b"\x80\x04e.", "goes back to a mark that is not there"),
        (b"\x80\x04a.", "takes from an empty stack"),
        (b"\x80\x04NNa.", "appends to what is not a list"),
        (b"\x80\x04N(Ne.", "appends to what is not a list"),
        (b"\x80\x04]NNs.", "sets an item of what is not a dict"),
        (b"\x80\x04}K\x01Ns.", "a key that is not text"),
        (b"\x80\x04}(Nu.", "a key without a value"),
        (b"\x80\x04h\x05.", "fetches value 5"),
        (b"\x80\x04\x94.", "stores what is not there"),
        (b"\x80\x04\x8c\x05ab.", "is cut off"),
        (b"\x80\x04\x8c\x01\xff.", "a text that is not UTF-8"),
        (b"\x80\x04X\x01\x00\x01\x00.", "a text of 65537 bytes"),
        (b"\x80\x04\x8d" + b"\xff" * 8, "a text of"),
        (b"\x80\x04\x8a\x0a" + b"\x00" * 10, "an integer of 10 bytes"),
        (b"\x80\x04\x95" + b"\x00" * 4, "is cut off"),
        (b"\x80\x04G\x00", "is cut off"),
        (b"\x80\x04" + b"(" * 100, "more than 64 containers in each other"),
        (b"\xffN.", "contains opcode 0xff at byte 0"),
        (b"\x00N.", "contains opcode 0x00 at byte 0"),
    ],
)
def test_a_damaged_pickle_says_where_and_why(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load_plain(data, "f")


def test_containers_and_stored_values_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_pickle, "MEMORY_ANYWAY", 1000)
    assert load_plain(b"\x80\x04" + b"]" * 10 + b"a" * 9 + b".", "f")
    for many in (b"]" * 20, b"N" + b"\x94" * 20, b"\x8c\x00" * 40):
        with pytest.raises(FormatError, match=r"holds too much for its \d+ bytes"):
            load_plain(b"\x80\x04" + many + b".", "f")
    monkeypatch.setattr(plain_pickle, "STEPS_ANYWAY", 10)
    with pytest.raises(FormatError, match="takes more than 26 instructions in 36"):
        load_plain(b"\x80\x04" + b"N" * 33 + b".", "f")


@given(
    value=plain,
    at=st.integers(0, 400),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_any_damage_is_a_format_error_or_plain_data(
    value: object, at: int, byte: int, cut: bool
) -> None:
    data = bytearray(pickle.dumps(value, protocol=4))
    at %= len(data)
    if cut:
        del data[at:]
    else:
        data[at] = byte
    try:
        load_plain(bytes(data), "f")
    except FormatError as error:
        assert str(error).startswith("f: ")
