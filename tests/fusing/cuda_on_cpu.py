"""Kernels of the CUDA back end, run on a CPU: their own source behind a shim."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from memplan.fusing.cuda.kernel import TYPES, Kernel, headers
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


def built(kernel: Kernel, dtype: str, folder: Path, threads: int = 1) -> ctypes.CDLL:
    """A library whose `launch` runs the kernel, in `folder`."""
    type_ = TYPES[dtype][0]
    types = [f"const {type_}*", f"{type_}*"]
    types += [
        "const float*" if each.kind == "channel" else f"const {type_}*"
        for each in kernel.operands
    ]
    launch = _LAUNCH.format(
        floats=kernel.shared // 4,
        guard=_GUARD,
        poison=_POISON,
        arguments=", ".join(f"({each})p[{n}]" for n, each in enumerate(types)),
    )
    folder.mkdir(exist_ok=True)
    for name, text in headers().items():
        (folder / name).write_text(text)
    shim = SHIM.read_text() + f"\nconstexpr int THREADS = {threads};\n"
    (folder / "device.cuh").write_text(shim)
    source = folder / "kernel.cpp"
    source.write_text(kernel.source + launch)
    library = folder / "kernel.so"
    return ctypes.CDLL(str(compiled(library, "-fopenmp", "-x", "c++", source)))


def run(
    library: ctypes.CDLL, kernel: Kernel, tensors: list[Any], shape: tuple[int, int, int]
) -> None:
    """Launch it: `tensors` are input, output and operands, all as they shall lie;
    `shape` is images, channels and elements of a plane."""
    pointers = (ctypes.c_void_p * len(tensors))(*(each.data_ptr() for each in tensors))
    images, channels, _ = shape
    code = library.launch(kernel.blocks(images, channels), pointers, *shape)
    assert code == 0, "the kernel wrote past its shared memory"
