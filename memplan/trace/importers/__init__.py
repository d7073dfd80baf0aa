"""Other programs' files, read: one format per module, and its name here."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from memplan.core.problem import Problem
from memplan.formats.sniff import Kind, Opened
from memplan.trace.trace import Trace

NAMES = ("snapshot", "minimalloc")


class Importer(Protocol):
    """What each of the modules has."""

    def takes(self, file: Opened) -> bool:
        """Whether `file`, of no form of memplan's own, is of this format."""

    def read(self, file: Opened, device: int | None = None) -> Trace | Problem:
        """What is in it; device: of several, which GPU's. Raises FormatError."""


def importer_of(file: Opened) -> Importer | None:
    """The importer that takes `file`; None for memplan's own forms, and for none."""
    if file.kind not in (Kind.PICKLE, Kind.JSON, Kind.UNKNOWN):
        return None
    modules = (importlib.import_module(f"{__name__}.{name}") for name in NAMES)
    importers = (cast(Importer, module) for module in modules)
    return next((each for each in importers if each.takes(file)), None)
