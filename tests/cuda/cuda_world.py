"""The CUDA allocator on the fake runtime, as tests drive both."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memplan.applying.cuda_library import Library
from memplan.applying.tables import ReplayArrays

MIB = 1 << 20
OUT_OF_MEMORY = 2
LAUNCH_FAILURE = 719
FUNCTIONS = (
    *("cudaMalloc", "cudaFree", "cudaEventCreate", "cudaEventRecord"),
    *("cudaEventQuery", "cudaEventSynchronize", "cudaDeviceSynchronize"),
)
_COUNTS = (
    *("live_bytes", "live_events", "overwritten", "wild_accesses", "freed_in_use"),
    *("bad_frees", "capture_violations", "injected"),
    *FUNCTIONS,
)
_OUTCOME = (
    *("requests", "served", "out_of_memory", "other_errors", "captured"),
    *("unexpected", "recorded", "overlaps"),
)
_TORCHS = (
    *("alloc", "free", "record_stream", "empty_cache", "next_step"),
    *("begin_pool", "end_pool"),
)
_POINTER, _U64, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int


class World:
    """One allocator on one fake runtime; nothing is shared with another test's.

    Streams are handles, None the default one. `fill` and `check` queue work that runs
    when the stream is advanced: so a test sees what the device would.
    """

    def __init__(self, allocator: Path, runtime: Path, load: bool = True) -> None:
        self.runtime = runtime
        self._fake = ctypes.CDLL(str(runtime))
        self.native = Library(allocator)
        self._raw = ctypes.CDLL(str(allocator))
        if load:
            self.native.load_runtime(str(runtime))
        self._fake.fake_stream.restype = _POINTER
        self._raw.memplan_cuda_try_alloc.restype = _POINTER
        self._raw.memplan_cuda_try_alloc.argtypes = (
            *(ctypes.c_ssize_t, _INT, _POINTER, ctypes.c_char_p, ctypes.c_size_t),
        )
        self._raw.memplan_cuda_free.argtypes = (_POINTER, ctypes.c_size_t, _INT)
        self._raw.memplan_cuda_record_stream.argtypes = (_POINTER, _POINTER)
        self._fake.fake_advance.restype = _U64
        for name in ("fake_fill", "fake_check"):
            getattr(self._fake, name).argtypes = (
                *(_POINTER, _POINTER, _U64, ctypes.c_uint32),
            )

    # ---- the program

    def stream(self, device: int = 0) -> int:
        handle: int = self._fake.fake_stream(device)
        return handle

    def allocate(
        self, size: int, stream: int | None = None, device: int = 0
    ) -> int | str:
        """An address (0: null), or the message of the exception."""
        message = ctypes.create_string_buffer(1000)
        address = self._raw.memplan_cuda_try_alloc(
            size, device, stream, message, len(message)
        )
        return message.value.decode() or int(address or 0)

    def take(self, size: int, stream: int | None = None, device: int = 0) -> int:
        """An address; fails where an exception is thrown."""
        found = self.allocate(size, stream, device)
        assert isinstance(found, int), found
        return found

    def release(self, address: int, device: int = 0) -> None:
        self._raw.memplan_cuda_free(address, 0, device)

    def record_stream(self, address: int, stream: int | None) -> None:
        self._raw.memplan_cuda_record_stream(address, stream)

    def fill(self, stream: int | None, address: int, size: int, token: int) -> None:
        self._fake.fake_fill(stream, address, size, token)

    def check(self, stream: int | None, address: int, size: int, token: int) -> None:
        self._fake.fake_check(stream, address, size, token)

    def wait(self, waiter: int | None, stream: int | None) -> None:
        self._fake.fake_wait(_POINTER(waiter), _POINTER(stream))

    def pool(self, on: bool, device: int = 0) -> None:
        """What torch calls as a capture, or the use of a memory pool, begins and ends.

        The C++ parameters are, to a caller, two numbers and the address of an object.
        """
        name = "begin_pool" if on else "end_pool"
        function = getattr(self._raw, f"memplan_cuda_{name}")
        unused = ctypes.create_string_buffer(64)
        function(device, _U64(0), _U64(1), *([unused] if on else []))

    # ---- the device

    def advance(self, stream: int | None, count: int = 1_000_000) -> int:
        return int(self._fake.fake_advance(_POINTER(stream), _U64(count)))

    def run_all(self) -> None:
        self._fake.fake_run_all()

    def once_synchronized(self, call: Callable[[], None]) -> None:
        """Another thread does this right after the whole device was waited for."""
        self._call = ctypes.CFUNCTYPE(None)(call)  # kept as long as it may be called
        self._fake.fake_once_synchronized(self._call)

    def cap(self, limit: int, device: int = 0) -> None:
        self._fake.fake_cap(device, _U64(limit))

    def capture(self, stream: int, on: bool) -> None:
        self._fake.fake_capture(_POINTER(stream), int(on))

    def fail(
        self, function: str, *, skip: int = 0, count: int = 1, code: int = OUT_OF_MEMORY
    ) -> None:
        """After `skip` more calls of a CUDA function, `count` calls fail."""
        number = FUNCTIONS.index(function)
        self._fake.fake_fail(number, ctypes.c_long(skip), ctypes.c_long(count), code)

    def counts(self) -> dict[str, int]:
        """What the runtime saw."""
        values = (_U64 * len(_COUNTS))()
        self._fake.fake_counts(values)
        return dict(zip(_COUNTS, values, strict=True))

    # ---- the plan

    def plan(
        self,
        requests: list[tuple[int, int]],
        arena: int,
        *,
        starts: tuple[int, ...] = (0,),
        loop_start: int = 0,
        kinds: int = 0,
        elastic: bool = False,
        device: int = 0,
        rank: int = 0,
    ) -> None:
        """Serve a stream from (size, offset) requests; the last steps are other kinds,
        and those that repeat may be elastic."""
        sizes = np.array([size for size, _ in requests], dtype=np.int64)
        offsets = np.array([offset for _, offset in requests], dtype=np.int64)
        first = np.array(starts, dtype=np.int64)
        steps = len(starts)
        loop_end = steps - kinds
        plan = ReplayArrays(
            sizes,
            offsets,
            first,
            loop_start,
            loop_end,
            [elastic and loop_start <= i < loop_end for i in range(steps)],
            np.zeros(len(sizes), dtype=np.bool_),
        )
        self.native.load_plan(device, rank, plan, arena)

    def stats(self, device: int = 0) -> dict[str, int]:
        return self.native.stats(device)

    def assert_sound(self) -> None:
        """Nothing on the device went wrong so far."""
        seen = self.counts()
        for name in (
            *("overwritten", "wild_accesses", "freed_in_use", "bad_frees"),
            "capture_violations",
        ):
            assert seen[name] == 0, name

    def assert_no_leak(self) -> None:
        """All can be given back, and is."""
        self.run_all()
        assert self.native.shut_down() == 0
        seen = self.counts()
        assert (seen["live_bytes"], seen["live_events"]) == (0, 0)
        self.assert_sound()

    def soak(self, requests: int, threads: int, seed: int) -> dict[str, int]:
        """A random program over five streams, two of them planned; what came of it."""
        rng = random.Random(seed)
        sizes = [rng.choice([8, 512, 1000, 4096, 5000, 65536]) for _ in range(2000)]
        arena = 8 * MIB
        for rank in (0, 1):
            # A plan that was never right: offsets at random, so that conflicts abound.
            places = [rng.randrange((arena - 65536) // 512) * 512 for _ in sizes]
            places = [-1 if rng.random() < 0.05 else place for place in places]
            planned = list(zip(sizes, places, strict=True))
            self.plan(planned, arena, starts=(0, 300, 600), loop_start=1, rank=rank)
        self.cap(40 * MIB)
        self.native.set_cache_limit(4 * MIB)
        functions = (_POINTER * len(_TORCHS))(*map(self.native.address, _TORCHS))
        streams = (_POINTER * 5)(None, *[self.stream() for _ in range(4)])
        outcome = (_U64 * len(_OUTCOME))()
        self._fake.soak(
            *(functions, streams, ctypes.c_size_t(5), _U64(requests)),
            *(threads, seed, outcome),
        )
        return dict(zip(_OUTCOME, outcome, strict=True))
