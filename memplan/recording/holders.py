"""Whose variables hold the tensors that are alive when a recording ends."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType, ModuleType
from typing import Any

from memplan.recording.activations import bytes_of, of_storage
from memplan.recording.cycles import Cycles, cycle_of, place_of, unreachable
from memplan.recording.references import Root, is_library, is_tensor, tensor_paths
from memplan.recording.source import Lines
from memplan.trace.holders import GRAPH_OF, Held
from memplan.trace.trace import TraceInfo

MOST_ADDRESSES = 1 << 16
LEAST_BYTES = 1 << 20
_KEY = re.compile(r"\['[^']*'\]")
MOST_KEYS = 4  # of a dict that are named


class HolderWatch:
    """Looks for cycles from `start` on, and for the holders of what is alive in the
    end."""

    def __init__(
        self, address_of: Callable[[Any], int], events: Callable[[], int]
    ) -> None:
        """address_of: of a storage, 0 if it is not recorded. events: recorded yet."""
        self._address_of = address_of
        self._cycles = Cycles(events)
        self._fault = ""

    def start(self) -> None:
        """Begin."""
        self._cycles.start()

    def close(self) -> None:
        """End; does nothing the second time."""
        self._cycles.stop()

    def noted(self, info: TraceInfo, since_ns: int = 0) -> TraceInfo:
        """End; returns `info` with what was found. since_ns: monotonic ns where the
        trace's clock reads 0."""
        self.close()
        try:
            program = Variables()
            lines = Lines(program.files)
            holders = find_holders(self._address, program, lines)
            collections = self._cycles.result(lines, since_ns)
        except Exception as error:  # an object of the program's that cannot be read
            self._fault = f"{type(error).__name__}: {error}"
            return info
        return replace(info, holders=holders, collections=collections)

    def notes(self) -> list[str]:
        """What was not found, and why."""
        fault = self._fault or self._cycles.fault
        return [f"who holds what is alive was not found: {fault}"] if fault else []

    def _address(self, tensor: Any) -> int:
        return of_storage(tensor, self._address_of)


def find_holders(
    address_of: Callable[[Any], int], program: Variables, lines: Lines
) -> tuple[Held, ...]:
    """The holders of all tensors that the program's variables reach now.

    address_of: of a tensor's storage, 0 if it is not recorded. Of more addresses than
    MOST_ADDRESSES the first found are kept.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    waiting = {address_of(each): bytes_of(each) for each in _tensors()}
    waiting.pop(0, None)
    seen: set[int] = set()

    def many() -> bool:  # few bytes are not worth a look at all objects
        return sum(waiting.values()) >= LEAST_BYTES

    for tensor, path in tensor_paths(program.groups(many)):
        address = address_of(tensor)
        if address and address not in seen and len(seen) < MOST_ADDRESSES:
            seen.add(address)
            waiting.pop(address, None)
            name = GRAPH_OF * path.graph + path.text
            found[name, path.root.place].append(address)
    holders = [
        Held(name, place, lines.adding(_variable(name)), tuple(addresses))
        for (name, place), addresses in _grouped(found).items()
    ]
    if many():
        holders += _not_collected(waiting, address_of, lines)
    return tuple(holders)


def _not_collected(
    waiting: dict[int, int], address_of: Callable[[Any], int], lines: Lines
) -> Iterator[Held]:
    """Tensors that no variable reaches, in cycles that Python has not collected yet.

    waiting: their bytes, by address.
    """
    garbage = unreachable(gc.get_objects())
    addresses = {address_of(each) for each in garbage if is_tensor(each)}
    addresses &= waiting.keys()
    if addresses:
        cycle = cycle_of(garbage)
        place = place_of(cycle, lines)
        closed = f"closed at {place}" if place else ""
        name = f"uncollected cycle {cycle}".rstrip()
        yield Held(name, closed, (), tuple(sorted(addresses)))


def _tensors() -> list[Any]:
    objects = gc.get_objects()
    tensor = sys.modules["torch"].Tensor
    every = {id(type(each)): type(each) for each in objects}
    kinds = {name for name, kind in every.items() if issubclass(kind, tensor)}
    return [each for each in objects if id(type(each)) in kinds]


class Variables:
    """The variables of a program, and its files."""

    def __init__(self) -> None:
        modules = [m for m in list(sys.modules.values()) if type(m) is ModuleType]
        files = [(module, vars(module).get("__file__")) for module in modules]
        known = [(module, file) for module, file in files if isinstance(file, str)]
        self._own = [m for m, file in known if not is_library(file)]
        self._own.sort(key=lambda module: module.__name__ != "__main__")
        self._other = [m for m in modules if m not in self._own]
        frames = list(self._frames())
        self._running = frames
        named = [vars(module)["__file__"] for module in self._own]
        running = [frame.f_code.co_filename for frame in frames]
        self.files = list(dict.fromkeys([*running, *named]))  # what runs comes first

    def _frames(self) -> Iterator[FrameType]:
        """The frames of the program's functions that run, in all threads."""
        for innermost in list(sys._current_frames().values()):
            frame: FrameType | None = innermost
            while frame is not None:
                if not is_library(frame.f_code.co_filename):
                    yield frame
                frame = frame.f_back

    def groups(self, wanted: Callable[[], bool]) -> Iterator[Iterator[Root]]:
        """Globals of the program's modules and locals of its frames; then, if `wanted`,
        globals of libraries."""
        yield self._programs()
        if wanted():
            yield self._libraries()

    def _programs(self) -> Iterator[Root]:
        known = {id(vars(module)) for module in self._own}
        for module in self._own:
            file = os.path.basename(vars(module)["__file__"])
            yield from _roots(vars(module), f"global of {file}")
        for frame in self._running:
            code = frame.f_code
            file = os.path.basename(code.co_filename)
            if code.co_name != "<module>":
                where = f"local of {code.co_name}, {file}:{frame.f_lineno}"
                yield from _roots(frame.f_locals, where)
            if id(frame.f_globals) not in known:
                known.add(id(frame.f_globals))
                yield from _roots(frame.f_globals, f"global of {file}")

    def _libraries(self) -> Iterator[Root]:
        for module in self._other:
            if not module.__name__.startswith("memplan"):
                yield from _roots(vars(module), f"global of {module.__name__}")


def _roots(names: dict[str, Any], place: str) -> Iterator[Root]:
    for name, value in list(names.items()):
        if not name.startswith("__"):
            yield Root(name, place, value)


def _grouped(
    found: dict[tuple[str, str], list[int]],
) -> dict[tuple[str, str], list[int]]:
    """Keys of a dict are any index where there are many."""
    alike = Counter((_KEY.sub("[*]", name), place) for name, place in found)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for (name, place), addresses in found.items():
        general = _KEY.sub("[*]", name), place
        many = alike[general] > MOST_KEYS
        groups[general if many else (name, place)] += addresses
    return groups


def _variable(name: str) -> str:
    """The last name before the first index: "cache" of `model.cache[*].keys`."""
    before = name.removeprefix(GRAPH_OF).split("[*")[0]
    return re.findall(r"\w+", before)[-1] if before else ""
