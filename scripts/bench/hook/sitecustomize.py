"""Measures the steps of a PyTorch program that knows nothing of it.

With this folder on PYTHONPATH, Python imports this file at start-up. Where
BENCH_MARKS_FILE is set, it waits for torch to be imported, notes time, page faults,
resident memory and CPU time at the end of each optimizer step (or, where no optimizer
steps, at each call of the outermost module), and writes them to that file as JSON at
exit. The program, its arguments and its allocator are untouched.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

WATCHED = "torch.optim.optimizer"


def resident() -> tuple[int, int]:
    """Resident memory now, and at its highest so far, in bytes."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        fields = dict(line.split(":", 1) for line in stream)
    now, highest = (int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return now * 1024, highest * 1024


class Marks:
    """One row per step boundary: seconds, page faults, resident, highest resident, and
    seconds of CPU time, of all threads.

    At the boundary that ends the warm-up, the kernel's high-water mark is reset, so
    that later rows hold the steady peak; the mark until then is kept apart, since
    the reset also lowers the ru_maxrss that a parent process sees.
    """

    def __init__(self, path: str, warmup: int) -> None:
        self.path, self.warmup = path, warmup
        self.rows: list[tuple[float, int, int, int, float]] = []
        self.peak_before_reset = 0
        self.was_reset = False
        self.lock = threading.Lock()

    def add(self) -> None:
        """Note a boundary."""
        with self.lock:  # threads may mark steps side by side
            self._add()

    def _add(self) -> None:
        seconds = time.perf_counter()
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.rows.append((seconds, faults, *resident(), time.process_time()))
        if len(self.rows) == self.warmup:
            self.peak_before_reset = max(self.peak_before_reset, self.rows[-1][3])
            try:
                with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
                    stream.write("5")
            except OSError:
                return
            self.was_reset = True

    def write(self) -> None:
        """Write the rows; nothing where no step was seen."""
        if self.rows:
            with open(self.path, "w", encoding="utf-8") as stream:
                json.dump(
                    {
                        "rows": self.rows,
                        "peak_before_reset": self.peak_before_reset,
                        "was_reset": self.was_reset,
                    },
                    stream,
                )


def watch(marks: Marks) -> None:
    """Have torch call `marks` at step boundaries."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    handles: list[Any] = []
    first = threading.Lock()

    def first_call(module: Any, *_: object) -> None:
        # The first module called is the outermost: watch it alone from now on.
        if not first.acquire(blocking=False):
            return  # another thread's was
        handles.pop().remove()
        handles.append(module.register_forward_pre_hook(lambda *_: marks.add()))
        marks.add()

    def step(*_: object) -> None:
        if handles:  # the first step: optimizers mark better than modules
            handles.pop().remove()
            marks.rows.clear()
        marks.add()

    handles.append(register_module_forward_pre_hook(first_call))
    register_optimizer_step_post_hook(step)


class _Loader(SourceFileLoader):
    """Loads the watched module as ever, then hooks it."""

    marks: Marks

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        watch(self.marks)


class _Finder(MetaPathFinder):
    """Finds the watched module once, and hands it to `_Loader`."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            loader = _Loader(spec.loader.name, spec.loader.path)
            loader.marks = self._marks
            spec.loader = loader
        return spec


if "BENCH_MARKS_FILE" in os.environ:
    _marks = Marks(os.environ["BENCH_MARKS_FILE"], int(os.environ["BENCH_WARMUP"]))
    sys.meta_path.insert(0, _Finder(_marks))
    atexit.register(_marks.write)
