"""Applying a plan to CUDA memory, through torch's pluggable allocator. Experimental.

The allocator has to be in place before CUDA is first used, and stays to the end of
the process. torch loses its own statistics by it; `stats` has what takes their place.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from memplan.applying.cuda_library import Library
from memplan.applying.report import Report, make_report
from memplan.applying.suitability import check_plan, step_marks
from memplan.applying.tables import replay_arrays
from memplan.core.plan import Plan
from memplan.errors import EnvironmentUnfitError, UsageError
from memplan.recording.boundary import Boundaries
from memplan.recording.shim import require_torch
from memplan.recording.step_clock import StepClock
from memplan.trace.trace import Mark

CACHE_LIMIT = 256 << 20  # bytes of freed blocks kept outside the arenas
MAX_DEVICES = 64
_MAPS = Path("/proc/self/maps")

_library: Library | None = None  # once it is torch's allocator


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """A plan, and the stream it is for.

    device: its index; stream: 0 for the default stream, n for the n-th other one that
    asks for memory there.
    """

    plan: Plan
    device: int = 0
    stream: int = 0


class CudaLoader:
    """Serves this process's CUDA tensors from plans, from `start` to `stop`.

    Each planned stream has an arena of its own, and no block in it is reused before
    every stream that used it is done. Requests that depart from their plan, or come on
    another stream, are served all the same, and counted. Requests under CUDA graph
    capture are refused with a RuntimeError.
    """

    def __init__(
        self,
        plan: Plan,
        name: str = "the plan",
        *,
        device: int = 0,
        others: Sequence[StreamPlan] = (),
        cache_limit: int = CACHE_LIMIT,
    ) -> None:
        """Check `plan`, of the default stream of `device`, and those of `others`.

        name: stands for the plan in messages. cache_limit: bytes of freed blocks kept
        outside the arenas, for each device. Raises InputError if a plan does not
        verify, has no program to replay, or was made for another device.
        """
        self.plan = plan
        self._plans = (StreamPlan(plan, device), *others)
        for each in self._plans:
            check_plan(each.plan, name, "cuda")
        self._cache_limit = cache_limit
        self._boundaries = Boundaries(self._step, step_marks(plan))
        self._clock = StepClock()
        self._running: Library | None = None

    def start(self) -> None:
        """Become torch's CUDA allocator, for good.

        Raises EnvironmentUnfitError, with the reason, where that is not possible: torch
        has no CUDA or has begun to use it, or is to use what only its own allocator
        does. Raises UsageError if a plan was applied before in this process.
        """
        global _library  # noqa: PLW0603 - as there is one allocator for a process
        if _library is not None:
            raise UsageError(
                "a CUDA plan was applied in this process already; torch's allocator is "
                "chosen once: start another process"
            )
        torch = require_torch("applying a plan to CUDA")
        refuse_unfit(torch, os.environ)
        library = Library(library_path())
        library.load_runtime(loaded_cudart())
        library.set_cache_limit(self._cache_limit)
        self._boundaries.start()
        try:
            for each in self._plans:
                arrays = replay_arrays(each.plan)
                library.load_plan(
                    each.device, each.stream, arrays, each.plan.arena_bytes
                )
            _install(torch, library)
        except BaseException:
            self._boundaries.stop()
            raise
        _library = self._running = library

    def stop(self) -> None:
        """Serve no more from the arenas; blocks still alive stay where they are."""
        if self._running is not None:
            self._running.pass_through(True)
            self._boundaries.stop()

    def report(self) -> Report:
        """How it went so far, on all devices. Raises UsageError before `start`."""
        if self._running is None:
            raise UsageError("nothing to report: the loader was not started")
        devices = stats()
        total: Counter[str] = Counter()
        for each in devices.values():
            total.update(each)
        prefix = "hot_"
        names = [name.removeprefix(prefix) for name in total if name.startswith(prefix)]
        hot = {name: total[prefix + name] for name in names}
        warmup = {name: total[name] - hot[name] for name in names}
        arena = total["arena_bytes"]
        return make_report(self.plan, hot, warmup, arena, self._clock, devices=devices)

    def _step(self, mark: Mark) -> None:
        if self._running is not None:
            self._running.next_step()
        self._clock.note(mark)


def stats() -> dict[int, dict[str, int]]:
    """Bytes and counts of each CUDA device in use, by its index.

    `allocated_bytes`, `active_bytes` (freed, but a stream may still be using them,
    included) and `reserved_bytes` (taken from CUDA) each have a `..._peak`; they are
    what `torch.cuda.memory_stats` cannot tell under a plan. Raises UsageError where no
    CUDA plan is applied.
    """
    if _library is None:
        raise UsageError("no CUDA plan is applied in this process; ask torch.cuda")
    every = {device: _library.stats(device) for device in range(MAX_DEVICES)}
    return {device: found for device, found in every.items() if found}


def library_path() -> Path:
    """The allocator's library, beside the other native code."""
    from memplan.native import _alloc

    return Path(_alloc.__file__).with_name("libmemplan_cuda.so")


def loaded_cudart() -> str:
    """The path of the CUDA runtime that this process has loaded.

    Raises EnvironmentUnfitError if there is none: it may be part of torch itself.
    """
    with _MAPS.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            path = line.rstrip("\n").partition("/")[2]
            if Path(path).name.startswith("libcudart"):
                return f"/{path}"
    raise EnvironmentUnfitError(
        "torch has loaded no libcudart.so; install a build of torch that uses one, as "
        "those on PyPI do"
    )


def refuse_unfit(torch: Any, environment: Mapping[str, str]) -> None:
    """Raise EnvironmentUnfitError if this torch cannot have another CUDA allocator.

    environment: the variables that configure torch's own one.
    """
    if not getattr(torch.version, "cuda", None):
        _unfit(f"torch {torch.__version__} was built without it", "install one with")
    if torch.cuda.is_initialized():
        _unfit(
            "CUDA is in use already, and torch's allocator with it",
            "start before the first CUDA tensor is made",
        )
    if not torch.cuda.is_available():
        _unfit("torch finds no GPU it can use", "check the driver with nvidia-smi")
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        settings = environment.get(variable, "").replace(" ", "").lower().split(",")
        for setting in ("expandable_segments:true", "backend:cudamallocasync"):
            if setting in settings:
                _unfit(
                    f"{variable} has {setting}, which only torch's own allocator does",
                    "take it out",
                )
    inductor = sys.modules.get("torch._inductor.config")
    triton = getattr(inductor, "triton", None)
    if environment.get("TORCHINDUCTOR_CUDAGRAPHS") == "1" or getattr(
        triton, "cudagraphs", False
    ):
        _unfit(
            "CUDA graph trees save and restore the state of torch's own allocator",
            "turn torch._inductor.config.triton.cudagraphs off",
        )


def _unfit(reason: str, remedy: str) -> NoReturn:
    raise EnvironmentUnfitError(f"a plan cannot be applied to CUDA: {reason}; {remedy}")


def _install(torch: Any, library: Library) -> None:
    """Make `library` torch's allocator; EnvironmentUnfitError if torch refuses."""
    memory = torch.cuda.memory
    try:
        allocator = memory.CUDAPluggableAllocator(
            str(library.path), "memplan_cuda_alloc", "memplan_cuda_free"
        )
        inner = allocator.allocator()
        # Without it, a block that another stream uses would be reused too early.
        inner.set_record_stream_fn(library.address("record_stream"))
        for setter, function in (
            ("set_reset_fn", "empty_cache"),
            ("set_begin_allocate_to_pool", "begin_pool"),
            ("set_end_allocate_to_pool_fn", "end_pool"),
        ):
            if hasattr(inner, setter):
                getattr(inner, setter)(library.address(function))
        memory.change_current_allocator(allocator)
    except (AttributeError, RuntimeError, TypeError) as error:
        _unfit(
            f"torch {torch.__version__} does not take the allocator ({error})",
            "use torch 2.6 or later, and start before CUDA is first used",
        )
    # torch's own refusal names neither the plan nor a way out.
    torch.UntypedStorage._share_cuda_ = _refuse_sharing


def _refuse_sharing(*_: object, **__: object) -> NoReturn:
    raise EnvironmentUnfitError(
        "CUDA tensors cannot be sent to another process under a plan (IPC); send them "
        "as CPU tensors, or run without the plan"
    )
