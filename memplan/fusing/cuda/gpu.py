"""One GPU: what it is, and kernels made ready for it. It has not run on one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from memplan.errors import EnvironmentUnfitError
from memplan.fusing.cuda.driver import Driver
from memplan.fusing.cuda.kernel import Kernel, headers
from memplan.fusing.cuda.nvrtc import NoNvrtcError, cubin, find_nvrtc
from memplan.toolchain.cache import Cache

# Blocks that a multiprocessor is to hold at least: that many threads of others work
# while one block waits at a barrier. Reckoned, not timed.
_TOGETHER = 4


class Launch(Protocol):
    """A kernel that is ready: puts a launch of it on the current stream."""

    def __call__(
        self, blocks: int, pointers: Sequence[int], numbers: Sequence[int]
    ) -> None: ...


class Gpu:
    """The CUDA device of an index, with torch's context and current stream."""

    def __init__(self, index: int = 0, cache: Cache | None = None) -> None:
        """cache: where cubins are kept; the user's own if None.

        Raises EnvironmentUnfitError if torch has no CUDA, or there is no such device.
        """
        import torch

        if torch.version.cuda is None or not torch.cuda.is_available():
            raise EnvironmentUnfitError("torch finds no NVIDIA GPU; fuse for the CPU")
        if index >= torch.cuda.device_count():
            raise EnvironmentUnfitError(f"there is no CUDA device {index}")
        self.index, self.device, self._cache = index, f"cuda:{index}", cache
        found = torch.cuda.get_device_properties(index)
        self.architecture = f"sm_{found.major}{found.minor}"
        # What a block may take, if it asks for it; older versions of torch do not say.
        self.most = int(getattr(found, "shared_memory_per_block_optin", 48 << 10))
        all_of_it = int(getattr(found, "shared_memory_per_multiprocessor", 64 << 10))
        self.limit = min(self.most, all_of_it // _TOGETHER)

    @cached_property
    def _driver(self) -> Driver:
        return Driver()

    def ready(self, kernel: Kernel) -> Launch:
        """The kernel compiled, or read from the cache, and loaded.

        Raises NoNvrtcError, CompileError, and EnvironmentUnfitError if the driver
        refuses it.
        """
        import torch

        nvrtc = find_nvrtc(int(str(torch.version.cuda).split(".")[0]))
        if nvrtc is None:
            raise NoNvrtcError
        made = cubin(nvrtc, kernel.source, headers(), self.architecture, self._cache)
        with torch.cuda.device(self.index):
            torch.cuda.current_stream()  # the context is there from now on
            function = self._driver.load(made, kernel.shared)

        def launch(
            blocks: int, pointers: Sequence[int], numbers: Sequence[int]
        ) -> None:
            with torch.cuda.device(self.index):
                stream = torch.cuda.current_stream().cuda_stream
                function.launch(blocks, pointers, numbers, stream)

        return launch
