"""All stacks of a trace as one tree, the outermost calls at its root."""

from __future__ import annotations

from collections.abc import Iterable

from memplan.trace.stacks import Frame

ROOT = 0


class StackTree:
    """Nodes by number: `parent` of each, and its `label`; node 0 is the root.

    A parent comes before its children.
    """

    def __init__(self) -> None:
        self.parent: list[int] = [ROOT]
        self.label: list[int] = [0]
        self.labels: list[tuple[str, int, str]] = [("", 0, "all")]
        self._known: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[str, int, str], int] = {}

    def node(self, frames: Iterable[Frame]) -> int:
        """The node of a stack, outermost call first."""
        at = ROOT
        for frame in frames:
            number = self._number(frame)
            key = (at, number)
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = len(self.parent)
                self.parent.append(at)
                self.label.append(number)
            at = found
        return at

    def _number(self, frame: Frame) -> int:
        entry = (frame.filename, frame.line, frame.name)
        number = self._numbers.get(entry)
        if number is None:
            number = self._numbers[entry] = len(self.labels)
            self.labels.append(entry)
        return number
