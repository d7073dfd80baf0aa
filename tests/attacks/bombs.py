"""Small files that would become large, for each reader."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator

_TRACE = b'{"schema":"memplan.trace","version":1,'
_PLAN = b'{"schema":"memplan.plan","version":1,'
_CHUNKS = b'{"schema":"memplan.chunks","version":1,'
_NESTS = b'{"schema":"memplan.blocking-plan","version":1,'
_UNITS = (
    *(b"[],", b"{},", b"[1],", b'{"a":1},', b"1,", b"1000,", b'"ab",', b"1.5,"),
    *(b"99999999999999999999,", b"null,", b'"\\n\\n",', b"[[]],", b"-,", b'"",'),
)


def json_bombs(head: bytes, size: int) -> Iterator[bytes]:
    """JSON of about `size` bytes that begins with `head`, an open object."""
    for unit in _UNITS:
        yield head + b'"a":[' + unit * (size // len(unit)) + b"1]}"
    yield head + b",".join(b'"k%d":1' % i for i in range(size // 10)) + b"}"
    objects = (
        b"{" + b",".join(b'"%x":1' % (i * 900 + j) for j in range(900)) + b"}"
        for i in range(size // 9000)
    )
    yield head + b'"a":[' + b",".join(objects) + b"]}"
    for nest in (b"[", b'{"a":', b"[{},"):
        yield head + b'"a":' + nest * (size // len(nest))
    yield head + b'"a":"' + b"x" * size + b'"}'
    yield head + b'"a":"' + b"\\" * size + b'"}'
    yield head + b'"a":' + b"9" * size + b"}"
    yield (
        head + b'"a":"' + "\U0001f600".encode() + b'",' + b'"b":[' + b"1," * (size // 2)
    )
    yield head + b'"starts":[' + b"0," * (size // 2) + b"0]}"


def trace_bombs(size: int) -> Iterator[bytes]:
    yield from json_bombs(_TRACE, size)
    names = b"index time_ns address size requested_size thread device stream stack"
    columns = [b'"%s":[%s1]' % (name, b"1," * (size // 20)) for name in names.split()]
    yield _TRACE + b'"columns":{' + b",".join(columns) + b"}}"
    yield _TRACE + b'"columns":{"index":["' + b'a","' * (size // 4) + b'"]}}'
    yield _TRACE + b'"columns":{"index":["' + b"," * size + b'"]}}'
    frames = b'"files":["f"],"names":["n"],"frames":[[0,1,0]]'
    for stack in (b"[0],", b"[],", b"[0,0,0,0,0,0,0,0],"):
        table = stack * (size // len(stack))
        yield _TRACE + b'"stacks_table":{%s,"stacks":[%s[0]]}}' % (frames, table)
    yield _TRACE + b'"device":"' + b"x" * 70_000 + b'"}'


def gzip_bombs(size: int) -> Iterator[bytes]:
    for data in trace_bombs(size):
        yield gzip.compress(data, 6)
    yield gzip.compress(gzip.compress(b" " * size * 10))
    for filler in (b" ", b"[", b"[],", b"1,"):
        data = _TRACE + b'"a":[' + filler * (size * 20 // len(filler))
        yield gzip.compress(data, 6)


def plan_bombs(size: int) -> Iterator[bytes]:
    yield from json_bombs(_PLAN, size)
    yield json.dumps(
        {"schema": "memplan.plan", "device": {"type": "x" * 70_000}}
    ).encode()


def nest_bombs(size: int) -> Iterator[bytes]:
    yield from json_bombs(_NESTS, size)


def chunk_bombs(size: int) -> Iterator[bytes]:
    yield from json_bombs(_CHUNKS, size)
    fields = b'"status":"","reason":"","budget_bytes":1,"device":"","torch":"",'
    part = b'{"path":"","fingerprint":"","regions":[%s]}'
    for unit in (b"{},", b"[],", b'{"slices":[["a",0,1,1,0,0]]},'):
        regions = part % (unit * (size // len(unit)) + b"{}")
        yield _CHUNKS + fields + b'"parts":[' + regions + b"]}"
    slices = b",".join(b'["s%d",0,1,1,0,0]' % i for i in range(size // 20))
    region = (
        b'{"slices":[%s],"extent":8,"step":4,"copied":[],"inner":[],"fresh":false}'
        % slices
    )
    yield _CHUNKS + fields + b'"parts":[' + part % region + b"]}"


def csv_bombs(size: int) -> Iterator[bytes]:
    head, gaps = b"id,lower,upper,size\n", b"id,lower,upper,size,gaps\na,0,9,1,"
    yield head + b"a,0,1,1\n" * (size // 8)
    yield head + b"".join(b"%x,0,1,1\n" % i for i in range(size // 12))
    yield head + b"".join(b"%x,+0,+1,+1\n" % i for i in range(size // 14))
    yield head + b"".join(b"%x,\xc2\xa00,1,1\n" % i for i in range(size // 14))
    yield head + b"a,0,1,1\n" + b"\n" * size
    yield head + b"," * size
    yield head + b"a,0,1," + b"1" * size
    yield head + b"a" * 70_000 + b",0,1,1\n"
    for gap in (b"1-2 ", b"1-2\t", b"1-2@3:4 ", b"- ", b"1 ", b"1-"):
        yield gaps + gap * (size // len(gap)) + b"\n"
    many = b" ".join(b"%d-%d" % (4 * i, 4 * i + 1) for i in range(size // 16))
    yield b"id,lower,upper,size,gaps\na,0,99999999,1," + many + b"\n"
    yield b"ab," * (size // 3) + b"\n"
    yield b" ," * (size // 2) + b"\n"
    yield b"\n" * size


def pickle_bombs(size: int) -> Iterator[bytes]:
    for item in (b"N", b"]", b"}", b")", b"]\x94", b"K\x01", b"J\x01\x02\x03\x04"):
        yield b"\x80\x04](" + item * (size // len(item)) + b"e."
    yield b"\x80\x04](\x8c\x01a" + b"\x8c\x02ab" * (size // 4) + b"e."
    yield b"\x80\x04]" + b"\x94" * size + b"."
    yield b"\x80\x04]\x94(" + b"h\x00" * (size // 2) + b"e."
    yield b"\x80\x04}\x94\x8c\x01a\x94" + b"h\x00(h\x01Nu" * (size // 7) + b"."
    yield b"\x80\x04)" + b"\x94h\x00\x86" * 60 + b"."
    doubling = (b"](h%ch%ce\x94" % (i, i) for i in range(60))
    yield b"\x80\x04](]\x94" + b"".join(doubling) + b"e."
    yield b"\x80\x04]\x94" + b"h\x00h\x00ee" * (size // 6) + b"."
    yield b"\x80\x04" + b"(" * size + b"."
    for code in (b"\x8d" + b"\xff" * 8, b"X\xff\xff\xff\x7f", b"\x95" + b"\xff" * 8):
        yield b"\x80\x04" + code + b"a" * 100 + b"."
    for code in (b"cos\nsystem\n(Vid\ntR.", b"(ios\nsystem\n.", b"\x82\x01.", b"Pa\n."):
        yield b"\x80\x04" + code
    text = b"X" + struct.pack("<I", 60_000) + b"a" * 60_000 + b"\x94"
    shared = text + b"h\x00" * (size // 2)
    yield _snapshot(b"(" + shared + b"t")
    yield _snapshot(_entry(b"(" + shared + b"t"))
    yield _snapshot(_entry(b"](" + _FRAME + b"\x94" + b"h\x00" * (size // 2) + b"e"))
    frames = b"](" + _FRAME + b"e\x94"
    yield _snapshot(frames + b"0" + _entry(b"h\x00") * (size // 70))


def toml_bombs(size: int) -> Iterator[bytes]:
    for unit in (b"a.", b"[[level]]\n", b"[", b"a=[", b"{", b"'", b"9", b"\x00"):
        yield unit * (size // len(unit))
        yield unit * (16_000 // len(unit))
    yield b"a" + b".a" * 7_000 + b"=1"
    yield b"x=" + b"[" * 8_000 + b"]" * 8_000
    yield b"x=" + b"9" * 16_000


def journal_bombs(size: int) -> Iterator[bytes]:
    yield b"MPLNJRN1" + struct.pack("<III", 1, 0xFFFFFFFF, 0)
    yield b"MPLNJRN1" + struct.pack("<III", 1, 64 << 20, 0) + b"{" * size
    yield b"MPLNJRN1" * (size // 8)


_FRAME = b"}(\x8c\x08filename\x8c\x01f\x8c\x04lineK\x01\x8c\x04name\x8c\x01gu"


def _entry(frames: bytes) -> bytes:
    fields = b"\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x01"
    return b"}(" + fields + b"\x8c\x06streamK\x00\x8c\x06frames" + frames + b"u"


def _snapshot(entries: bytes) -> bytes:
    return b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](](" + entries + b"eeu."
