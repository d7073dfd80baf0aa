"""What was found fastest on this machine, kept for the next time."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.options import KERNELS, FuseOptions
from memplan.toolchain.cache import Cache
from memplan.toolchain.instructions import cpu
from memplan.version import __version__

_SUFFIX = ".json"


class Decisions:
    """Kernels by convolution, and how many images go at a time, for one network on
    inputs of one shape, one CPU and number of threads."""

    def __init__(self, key: str, found: dict[str, Any]) -> None:
        self._key, self._found = key, found
        self._changed = False
        self.kept = self.plan is not None  # from an earlier time

    @classmethod
    def of(cls, signatures: list[str], images: int, options: FuseOptions) -> Decisions:
        """Those kept for a network of convolutions like these, or none."""
        import torch

        parts = (
            signatures, images, repr(options), cpu(), __version__, torch.__version__
        )  # fmt: skip
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        cache = _cache()
        data = None if cache is None else cache.read(key, _SUFFIX)
        try:
            found = json.loads(data) if data else {}
        except ValueError:
            found = {}
        return cls(key, found if isinstance(found, dict) else {})

    def kernel(self, signature: str, names: list[str]) -> str | None:
        """The kernel found for a convolution among `names`, if one was."""
        found = self._found.get(f"{signature} {','.join(names)}")
        return found if found in names else None

    def keep_kernel(self, signature: str, names: list[str], kernel: str) -> None:
        self._found[f"{signature} {','.join(names)}"] = kernel
        self._changed = True

    @property
    def plan(self) -> tuple[tuple[str, ...], int] | None:
        """The kernels and the number of images at a time that won; None if not known;
        no kernels and 0 images where the model itself did."""
        found = self._found.get("plan")
        if not isinstance(found, list) or len(found) != 2:
            return None
        kernels, batch = found
        if not isinstance(kernels, list) or not isinstance(batch, int):
            return None
        if (not kernels) != (batch == 0) or not set(map(str, kernels)) <= set(KERNELS):
            return None
        return tuple(kernels), batch

    def keep_plan(self, kernels: tuple[str, ...], batch: int) -> None:
        self._found["plan"] = [list(kernels), batch]
        self._changed = True

    def write(self) -> None:
        """Keep what is new; a cache that takes nothing is done without."""
        cache = _cache() if self._changed else None
        if cache is not None:
            cache.write(self._key, _SUFFIX, json.dumps(self._found).encode())
            self._changed = False


def _cache() -> Cache | None:
    try:
        return Cache()
    except EnvironmentUnfitError:
        return None
