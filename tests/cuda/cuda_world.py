"""memplan's library in the fake torch on the fake runtime, as tests drive all three."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import numpy as np

from memplan.applying.cuda_library import UNLIMITED, Library, Place, plan_arrays
from memplan.core.tables import ReplayArrays

MIB = 1 << 20
OUT_OF_MEMORY = 2
LAUNCH_FAILURE = 719
FUNCTIONS = (
    *("cudaMalloc", "cudaFree", "cudaEventCreate", "cudaEventRecord"),
    *("cudaEventQuery", "cudaEventSynchronize", "cudaDeviceSynchronize"),
)
_COUNTS = (
    *("live_bytes", "overwritten", "wild_accesses", "freed_in_use"),
    *("bad_frees", "capture_violations", "injected"),
    *FUNCTIONS,
)
_TORCHS = ("requests", "recorded", "wrong_frees", "live", "pools", "same_type")
_OUTCOME = (
    *("requests", "served", "out_of_memory", "unexpected", "recorded", "exchanged"),
    "overlaps",
)
_POINTER, _U64, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int


class FakeTorch:
    """As much of torch as finding the slots takes; what is called is the world's."""

    __version__ = "2.14.1+cu130"

    def __init__(self, world: World) -> None:
        self.__file__ = str(world.torchs.parent.parent / "__init__.py")
        self.world = world
        self._pools = 0
        self.version: Any = type("version", (), {"cuda": "13.0"})
        self.cuda: Any = self
        self._C: Any = self

    def get_num_threads(self) -> int:
        return 1

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> int | None:
        return None

    def graph_pool_handle(self) -> int:
        self._pools += 1
        return self._pools

    def empty(self, size: int, **_: object) -> FakeBlock:
        return FakeBlock(self.world, self.world.take(size))

    def _cuda_beginAllocateToPool(self, device: int, pool: int) -> None:  # noqa: N802
        self.world.begin_pool(device, pool)

    def _cuda_endAllocateToPool(self, device: int, pool: int) -> None:  # noqa: N802
        self.world.end_pool(device, pool)

    def _cuda_emptyCache(self) -> None:  # noqa: N802
        self.world.empty()

    def _cuda_releasePool(self, device: int, pool: int) -> None:  # noqa: N802
        pass


class FakeBlock:
    """A tensor: freed when nobody has it any more."""

    def __init__(self, world: World, address: int) -> None:
        self._world, self.address = world, address

    def record_stream(self, stream: int | None) -> None:
        self._world.record_stream(self.address, stream)

    def __del__(self) -> None:
        self._world.release(self.address)


class World:
    """One library in one fake torch; nothing is shared with another test's.

    Streams are handles, None the default one. `fill` and `check` queue work that runs
    when the stream is advanced: so a test sees what the device would.
    """

    def __init__(self, library: Path, torchs: Path) -> None:
        self.torchs = torchs
        self._fake = ctypes.CDLL(str(torchs))
        self.native = Library(library)
        self._raw = ctypes.CDLL(str(library))
        self._alive: set[int] = set()
        self._fake.fake_stream.restype = _POINTER
        self._fake.fake_allocate.restype = _POINTER
        self._fake.fake_allocate.argtypes = (
            *(_U64, _INT, _POINTER, ctypes.POINTER(ctypes.c_char_p)),
        )
        self._fake.fake_release.argtypes = (_POINTER,)
        self._fake.fake_record_stream.argtypes = (_POINTER, _POINTER)
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
        message = ctypes.c_char_p()
        address = self._fake.fake_allocate(size, device, stream, ctypes.byref(message))
        if address:
            self._alive.add(address)
        return message.value.decode() if message.value else int(address or 0)

    def take(self, size: int, stream: int | None = None, device: int = 0) -> int:
        """An address; fails where an exception is thrown."""
        found = self.allocate(size, stream, device)
        assert isinstance(found, int), found
        return found

    def release(self, *addresses: int) -> None:
        for address in addresses:
            self._alive.discard(address)
            self._fake.fake_release(address)

    def record_stream(self, address: int, stream: int | None) -> None:
        self._fake.fake_record_stream(address, stream)

    def begin_pool(self, device: int = 0, number: int = 1) -> bool:
        """False where torch throws."""
        return int(self._fake.fake_begin_pool(device, _U64(number))) == 0

    def end_pool(self, device: int = 0, number: int = 1) -> None:
        self._fake.fake_end_pool(device, _U64(number))

    def fill(self, stream: int | None, address: int, size: int, token: int) -> None:
        self._fake.fake_fill(stream, address, size, token)

    def check(self, stream: int | None, address: int, size: int, token: int) -> None:
        self._fake.fake_check(stream, address, size, token)

    def wait(self, waiter: int | None, stream: int | None) -> None:
        self._fake.fake_wait(_POINTER(waiter), _POINTER(stream))

    # ---- torch and the device

    def empty(self) -> None:
        """As `torch.cuda.empty_cache`."""
        self._fake.fake_empty()

    def fail_otherwise(self, on: bool) -> None:
        """Torch's allocator throws, and not for want of memory."""
        self._fake.fake_fail_otherwise(int(on))

    def advance(self, stream: int | None, count: int = 1_000_000) -> int:
        return int(self._fake.fake_advance(_POINTER(stream), _U64(count)))

    def run_all(self) -> None:
        self._fake.fake_run_all()

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

    def torch_counts(self) -> dict[str, int]:
        """What torch's own allocator saw."""
        values = (_U64 * len(_TORCHS))()
        self._fake.fake_torch_counts(values)
        return dict(zip(_TORCHS, values, strict=True))

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
        unmarked: bool = False,
        brief: tuple[int, ...] | None = None,
        device: int = 0,
        rank: int = 0,
        later: bool = False,
        reserved: int = UNLIMITED,
    ) -> None:
        """Serve a stream from (size, offset) requests; the last steps are other kinds,
        and those that repeat may be elastic. brief: requests whose blocks are freed
        soon; then all lie by lifespan. reserved: as Library.load_plan has it. Requests
        are served from here on."""
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
            unmarked,
            None if brief is None else np.isin(np.arange(len(sizes)), brief),
        )
        place = Place(device, rank)
        self.native.load_plan(place, plan, arena, later=later, reserved=reserved)
        self.native.serve(True)

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
        assert self.torch_counts()["wrong_frees"] == 0

    def assert_no_leak(self) -> None:
        """All that is still alive can be given back, and is."""
        self.release(*self._alive)
        self.native.retire()
        for _ in range(2):  # events that failed are recorded the first time
            self.run_all()
            self.native.next_step()
        assert self.native.blocks() == 0
        assert self.torch_counts()["live"] == 0
        self.assert_sound()

    def soak(self, requests: int, threads: int, seed: int) -> dict[str, int]:
        """A random program over five streams, two of them planned; what came of it."""
        rng = random.Random(seed)
        plans: list[Any] = []
        kept: list[ReplayArrays] = []
        for _ in range(6):
            # Plans that were never right: offsets at random, so that conflicts abound.
            arena = rng.choice([2, 8, 12]) * MIB
            sizes = [rng.choice([8, 512, 1000, 4096, 5000, 65536]) for _ in range(900)]
            places = [rng.randrange((arena - 65536) // 512) * 512 for _ in sizes]
            places = [-1 if rng.random() < 0.05 else place for place in places]
            elastic = rng.random() < 0.5
            kept.append(
                ReplayArrays(
                    np.array(sizes, dtype=np.int64),
                    np.array(places, dtype=np.int64),
                    np.array([0, 300, 600], dtype=np.int64),
                    *(1, 3, [False, elastic, elastic]),
                    np.zeros(900, dtype=np.bool_),
                    brief=np.arange(900) % 3 == 0 if len(kept) % 2 else None,
                )
            )
            plans.append(plan_arrays(kept[-1], arena))
        for rank in (0, 1):
            self.native.load_plan(Place(0, rank), kept[rank], 12 * MIB)
        self.native.serve(True)
        self.cap(40 * MIB)
        functions = (_POINTER * 10)(
            *(
                ctypes.cast(getattr(self._fake, f"fake_{name}"), _POINTER)
                for name in (
                    *("allocate", "release", "record_stream", "empty", "begin_pool"),
                    "end_pool",
                )
            ),
            *(
                ctypes.cast(getattr(self._raw, f"memplan_cuda_{name}"), _POINTER)
                for name in ("next_step", "load_plan", "stand_aside", "retire")
            ),
        )
        streams = (_POINTER * 5)(None, *[self.stream() for _ in range(4)])
        self.release(self.take(512, streams[1]))  # the first to ask: of rank 1
        addresses = (_POINTER * len(plans))(*[ctypes.addressof(plan) for plan in plans])
        outcome = (_U64 * len(_OUTCOME))()
        self._fake.soak(
            *(functions, streams, ctypes.c_size_t(5), addresses),
            *(ctypes.c_size_t(len(plans)), _U64(requests), threads, seed, outcome),
        )
        return dict(zip(_OUTCOME, outcome, strict=True))
