"""Files of records, one a line of JSON, that runs which were cut off go on with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from memplan.errors import UsageError

Record = dict[str, Any]


def read_records(file: Path) -> list[Record]:
    """Records of a file; a last line that was cut off is left out.

    Raises UsageError where another line is no JSON.
    """
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        return [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise UsageError(f"{file}: a line is no record ({error})") from None


def append(file: Path, record: Record) -> None:
    """Add a line, after taking away what an earlier run left of one."""
    with file.open("ab+") as stream:
        stream.seek(0)
        text = stream.read()
        if not text.endswith(b"\n"):
            stream.truncate(text.rfind(b"\n") + 1)
        stream.write(json.dumps(record).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
