"""Synthetic CUDA memory snapshots, as torch makes them."""

from __future__ import annotations

from typing import Any

FRAMES = [
    {"filename": "model.py", "line": 12, "name": "forward"},
    {"filename": "train.py", "line": 3, "name": "<module>"},
]


class Device:
    """One device's allocator and the history it keeps: a ring of `limit` entries."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.limit = limit
        self.entries: list[dict[str, Any]] = []
        self.metadata: str | None = None
        self.now = 1_700_000_000_000_000
        self.recording = True
        self.skipped: frozenset[str] = frozenset()  # actions not to be kept
        self._sizes: dict[int, tuple[int, int]] = {}

    def _note(self, action: str, address: int, **more: Any) -> None:
        self.now += 50
        if not self.recording or action in self.skipped:
            return
        size, stream = self._sizes.get(address, (0, 0))
        entry = {
            **{"action": action, "addr": address, "size": size, "stream": stream},
            **{"time_us": self.now, "pool_id": (0, 0), "frames": []},
            **more,
        }
        if self.metadata is not None:
            entry["user_metadata"] = self.metadata
        self.entries = [*self.entries, entry][-self.limit :]

    def allocate(self, address: int, size: int, stream: int = 0, **more: Any) -> None:
        self._sizes[address] = size, stream
        self._note("alloc", address, **more)

    def free(self, address: int, *, complete: bool = True) -> None:
        self._note("free_requested", address)
        if complete:
            self.complete(address)

    def complete(self, address: int) -> None:
        self._note("free_completed", address)
        del self._sizes[address]

    def other(self, action: str, **more: Any) -> None:
        self._note(action, 0, **more)


def segment(address: int, total: int, *blocks: tuple[int, int, str]) -> dict[str, Any]:
    """A segment of device 0; blocks: address, size and state of each."""
    return {
        **{"device": 0, "address": address, "total_size": total, "stream": 0},
        **{"segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False},
        "blocks": [
            {"address": place, "size": size, "state": state, "frames": FRAMES}
            for place, size, state in blocks
        ],
    }


def snapshot(*devices: Device, segments: tuple[Any, ...] = ()) -> dict[str, Any]:
    """What `_snapshot()` returns for these devices."""
    return {
        "segments": list(segments),
        "device_traces": [device.entries for device in devices],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }


def step(device: Device, weights: int, count: int = 3) -> None:
    """One step: `count` temporaries, freed in the order they were made."""
    blocks = [weights + 4096 * (i + 1) for i in range(count)]
    for i, block in enumerate(blocks):
        device.allocate(block, 1000 * (i + 1), frames=FRAMES)
    for block in blocks:
        device.free(block)
