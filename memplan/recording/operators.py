"""What a line of Python asks PyTorch for, by name, from its code alone."""

from __future__ import annotations

import ast
import dis
import linecache
from types import CodeType

_OF_SYMBOL = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_divide",
    "%": "remainder",
    "@": "matmul",
    "**": "pow",
    "&": "bitwise_and",
    "|": "bitwise_or",
    "^": "bitwise_xor",
    "<<": "bitwise_left_shift",
    ">>": "bitwise_right_shift",
    "<": "lt",
    "<=": "le",
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    ">=": "ge",
    "[]": "index",
}
_OF_OPCODE = {
    "UNARY_NEGATIVE": "neg",
    "UNARY_INVERT": "bitwise_not",
    "BINARY_SUBSCR": "index",
    "BINARY_SLICE": "index",
    "STORE_SUBSCR": "copy_",
    "STORE_SLICE": "copy_",
}
_MOST_SOURCE = 20_000  # characters of one call


def operator_at(code: CodeType, offset: int) -> str:
    """The operator that the instruction at `offset` runs: "linear", "add", "matmul".

    The last name of what is called, as the source has it; the function's own name where
    that cannot be told. offset: bytes, as `frame.f_lasti`.
    """
    for found in dis.get_instructions(code):
        if found.offset == offset:
            return _name(code, found) or code.co_name
    return code.co_name


def _name(code: CodeType, found: dis.Instruction) -> str:
    if found.opname in _OF_OPCODE:
        return _OF_OPCODE[found.opname]
    if found.opname.startswith(("BINARY_", "INPLACE_", "COMPARE_")):
        symbol = found.argrepr.replace("bool(", "").rstrip(")")
        return _in_place(symbol)
    if "CALL" in found.opname:
        return _called(code, found)
    return ""


def _in_place(symbol: str) -> str:
    """`symbol` as an operator's name; += is "add_"."""
    if symbol in _OF_SYMBOL:
        return _OF_SYMBOL[symbol]
    plain = symbol.removesuffix("=")
    return _OF_SYMBOL[plain] + "_" if plain in _OF_SYMBOL else ""


def _called(code: CodeType, found: dis.Instruction) -> str:
    """The last name of what a call calls, from the source; "" without it."""
    source = _source(code, found)
    try:
        call = ast.parse(f"({source})", mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(call, ast.Call):
        return ""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _source(code: CodeType, found: dis.Instruction) -> str:
    """The text that an instruction comes from; "" where that is not known."""
    place = getattr(found, "positions", None)  # from Python 3.11 on
    if place is None or None in place:
        return ""
    lines = linecache.getlines(code.co_filename)[place.lineno - 1 : place.end_lineno]
    if not lines:
        return ""
    encoded = [line.encode() for line in lines]  # columns count bytes
    encoded[-1] = encoded[-1][: place.end_col_offset]
    encoded[0] = encoded[0][place.col_offset :]
    source = b"".join(encoded).decode(errors="replace")
    return source if len(source) <= _MOST_SOURCE else ""
