"""Writing figures: the suffix picks the format, the same figure gives the same bytes.

(The same with the same matplotlib and fonts, that is.)
"""

from __future__ import annotations

import os
from pathlib import Path

from matplotlib.figure import Figure

from memplan.errors import UsageError
from memplan.files import atomic_write, refuse_overwrite
from memplan.plotting.style import settled

# What each format would stamp with the time of writing, if it were let.
_DATELESS = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "ModDate": None},
}
DPI = 150  # of PNG, and of pixels inside SVG and PDF
SUFFIXES = tuple(f".{name}" for name in _DATELESS)


def check_target(path: str | os.PathLike[str], *, force: bool = False) -> str:
    """The format that `path` asks for: "png", "svg" or "pdf".

    Raises UsageError for another suffix, a missing folder, or a file that exists
    while `force` is off. Call it before the work of drawing.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in SUFFIXES:
        had = f"suffix {kind}" if kind else "no suffix"
        raise UsageError(f"{target} has {had}; name a {', '.join(SUFFIXES)} file")
    refuse_overwrite(target, force)
    return kind[1:]


def save(figure: Figure, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write `figure` to `path`, whole or not at all.

    Raises UsageError as `check_target` does, and EnvironmentUnfitError if the disk
    refuses.
    """
    kind = check_target(path, force=force)
    with settled(), atomic_write(path) as stream:
        figure.savefig(stream, format=kind, dpi=DPI, metadata=_DATELESS[kind])
