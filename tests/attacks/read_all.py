"""Reads every file in a folder with one reader, and says what that took, as JSON.

Usage: read_all.py MODULE:FUNCTION FOLDER; a line per file: its name, what became of
it, how far the peak of memory rose above where it was before the first, bytes, and
seconds of this process's time.
"""

from __future__ import annotations

import json
import pkgutil
import resource
import sys
import time
from pathlib import Path

from memplan.errors import InputError
from memplan.trace import columnar_json, parquet  # noqa: F401 - imported, not measured
from memplan.trace.importers import minimalloc, snapshot  # noqa: F401
from memplan.trace.recovery import recover_journal


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    read = pkgutil.resolve_name(sys.argv[1])
    # A journal is not read, but made a trace of.
    more = [f"{sys.argv[2]}.parquet"] if read is recover_journal else []
    before = peak()
    for path in sorted(Path(sys.argv[2]).iterdir()):
        start, was = time.process_time(), peak()
        try:
            read(str(path), *more)
            outcome = "read"
        except InputError as error:
            message = str(error)
            outcome = "refused" if message.isprintable() else f"unprintable: {error!r}"
        except BaseException as error:  # whatever it is, it must not escape
            outcome = f"{type(error).__name__}: {error}"[:300]
        seconds = time.process_time() - start
        rise = peak() - before if peak() > was else 0
        print(json.dumps([path.name, outcome, rise, seconds]), flush=True)


main()
