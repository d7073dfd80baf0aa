"""Kernels of the CUDA back end, run on a CPU: their own source behind a shim."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from memplan.fusing.cuda.form import Kernel, headers
from memplan.fusing.cuda.gpu import Launch
from tests.compiled import compiled

SHIM = Path(__file__).parent / "cuda_shim.cuh"
_POISON = 0x7FC0BEEF  # a NaN: what is read before it is written shows
_GUARD = 64  # floats behind the shared memory that none may touch

_LAUNCH = """
constexpr int ALL = {floats} + {guard};
float memory[ALL];

extern "C" __attribute__((visibility("default")))
int launch(int blocks, void** p, int images, int channels, int plane) {{
    gridDim.x = blocks;
    for (int block = 0; block < blocks; ++block) {{
        blockIdx.x = block;
        for (float& each : memory) each = same_bits<float>({poison}u);
        #pragma omp parallel num_threads(THREADS)
        {{
            threadIdx.x = omp_get_thread_num();
            stack({arguments}, images, channels, plane);
        }}
        for (int i = {floats}; i < ALL; ++i)
            if (same_bits<unsigned>(memory[i]) != {poison}u) return 1;
    }}
    return 0;
}}
"""


class Cpu:
    """What `Gpu` is to a stack: kernels made ready, with `threads` for a block."""

    device, limit = "cpu", 48 << 10

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self.folder, self._threads = folder, threads

    def ready(self, kernel: Kernel) -> Launch:
        """The kernel compiled, or taken from the folder."""
        (dtype,) = set(re.findall(r"const (\w+)\* __restrict__ in\b", kernel.source))
        text = kernel.source + self._launch(kernel, dtype)
        key = hashlib.sha256(f"{self._threads} {text}".encode()).hexdigest()[:16]
        library = self.folder / f"{key}.so"
        if not library.exists():
            self._compile(text, library)
        run = ctypes.CDLL(str(library)).launch

        def launch(
            blocks: int, pointers: Sequence[int], numbers: Sequence[int]
        ) -> None:
            listed = (ctypes.c_void_p * len(pointers))(*pointers)
            code = run(blocks, listed, *numbers)
            assert code == 0, "the kernel wrote past its shared memory"

        return launch

    def _launch(self, kernel: Kernel, type_: str) -> str:
        types = [f"const {type_}*", f"{type_}*"]
        types += [
            "const float*" if each.kind == "channel" else f"const {type_}*"
            for each in kernel.operands
        ]
        return _LAUNCH.format(
            floats=kernel.shared // 4,
            guard=_GUARD,
            poison=_POISON,
            arguments=", ".join(f"({each})p[{n}]" for n, each in enumerate(types)),
        )

    def _compile(self, text: str, library: Path) -> None:
        for name, header in headers().items():
            (self.folder / name).write_text(header)
        shim = SHIM.read_text() + f"\nconstexpr int THREADS = {self._threads};\n"
        (self.folder / "device.cuh").write_text(shim)
        source = library.with_suffix(".cpp")
        source.write_text(text)
        compiled(library, "-fopenmp", "-Werror", "-Wno-unused-parameter", source)
