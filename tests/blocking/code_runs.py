"""Emitted programs compiled, and their functions run on numbers of the test's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from memplan.blocking.machine.registers import TARGETS, Target, best_tile
from memplan.blocking.nest.layer import DIMS, Layer
from memplan.blocking.nest.nest import Nest, parse_nest
from memplan.blocking.run.cache import Layout, input_size
from memplan.toolchain.instructions import FLAGS, supported

Float32Array: TypeAlias = npt.NDArray[np.float32]

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
needs_compiler = pytest.mark.skipif(not COMPILERS, reason="needs g++ or clang++")
RUNNING = [name for name in TARGETS if supported(name)]
STRICT = ("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror")

# In place of the program's own main: reads planar tensors, writes both results.
_MAIN = """
int main() {
  Floats input(B * G * C * IN_PLANE), kernel(G * K_BLOCKS * TK * DEPTH);
  Floats partial(PARTS ? B * G * K_BLOCKS * TK * POSITIONS : 0);
  Floats columns(AS_IT_IS ? 0 : DEPTH * POSITIONS), panels(BLOCK_DEPTH * BLOCK_ROWS);
  Floats sums(BLOCK_DEPTH < DEPTH ? K_BLOCKS * TK * POSITIONS : 0);
  const auto count = static_cast<std::size_t>(input.size);
  if (std::fread(input.data, sizeof(float), count, stdin) != count) return 3;
  for (Index g = 0; g < G; ++g)
    for (Index k = 0; k < K; ++k)
      for (Index c = 0; c < C; ++c)
        for (Index fh = 0; fh < FH; ++fh)
          for (Index fw = 0; fw < FW; ++fw)
            if (std::fread(&kernel.data[kernel_at(g, k, c, fh, fw)], sizeof(float), 1,
                           stdin) != 1)
              return 3;
  Floats output(B * G * K * OUT_PLANE);
  const auto outputs = static_cast<std::size_t>(output.size);
  blocked(input.data, kernel.data, output.data, partial.data);
  std::fwrite(output.data, sizeof(float), outputs, stdout);
  std::fill(output.data, output.data + output.size, -1.0f);
  im2col_gemm(input.data, kernel.data, output.data, columns.data, panels.data,
              sums.data);
  std::fwrite(output.data, sizeof(float), outputs, stdout);
  return 0;
}
"""


def run(
    source: str, folder: Path, *flags: str, target: str = "native"
) -> subprocess.CompletedProcess[str]:
    """Compiled without a warning by every compiler there is; what the last one did."""
    for program in _programs(source, folder, (*FLAGS[target], *flags)):
        done = subprocess.run(
            [program, "1"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            break
    return done


def computed(
    source: str, folder: Path, target: str, image: Float32Array, kernel: Float32Array
) -> list[bytes]:
    """What each compiler's program writes for these planar tensors."""
    before = source[: source.index("int main(")].replace("direct(", "unused_direct(")
    cut = before.index("float unused_direct(")
    source = before[:cut] + "}  // namespace\n" + _MAIN
    data = image.tobytes() + kernel.tobytes()
    return [
        subprocess.run([program], input=data, capture_output=True, check=True).stdout
        for program in _programs(source, folder, FLAGS[target])
    ]


def reference(layer: Layer, image: Float32Array, kernel: Float32Array) -> Float32Array:
    """The convolution, one place of the window after the other; image as
    [B][G][C][rows][columns], kernel as [G][K][C][Fh][Fw]."""
    sx, sy = layer.stride
    found = np.zeros((layer.B, layer.G, layer.K, layer.Y, layer.X), np.float32)
    for fh in range(layer.Fh):
        for fw in range(layer.Fw):
            high, wide = (layer.Y - 1) * sy + 1, (layer.X - 1) * sx + 1
            part = image[..., fh : fh + high : sy, fw : fw + wide : sx]
            found += np.einsum("bgcyx,gkc->bgkyx", part, kernel[..., fh, fw])
    return found


def tensors(layer: Layer, layout: Layout) -> tuple[Float32Array, Float32Array]:
    """Small integers: the image's planes, as far apart as they lie, and the kernel."""
    random = np.random.default_rng(0)
    planes = (layer.B, layer.G, layer.C)
    image = random.integers(-4, 5, (*planes, layout.input_plane)).astype(np.float32)
    shape = (layer.G, layer.K, layer.C, layer.Fh, layer.Fw)
    return image, random.integers(-4, 5, shape).astype(np.float32)


def windows(layer: Layer, layout: Layout, image: Float32Array) -> Float32Array:
    """The image's rows and columns, without what lies between planes."""
    wide, high = input_size(layer)
    flat = image[..., : high * wide]
    return flat.reshape(*flat.shape[:-1], high, wide)


def _programs(source: str, folder: Path, flags: tuple[str, ...]) -> list[Path]:
    (folder / "conv.cpp").write_text(source, encoding="utf-8")
    made = []
    for compiler in COMPILERS:
        program = folder / compiler
        command = [compiler, *STRICT, *flags, "conv.cpp", "-o", str(program)]
        subprocess.run(command, cwd=folder, check=True)
        made.append(program)
    return made


@st.composite
def coded_nests(draw: st.DrawFn) -> tuple[Nest, Target]:
    """A layer with edges on all sides, and any nest over its register tile, or without
    one."""
    target = TARGETS[draw(st.sampled_from(RUNNING))]
    most = {"X": 33, "Y": 9, "C": 20, "K": 70, "Fw": 4, "Fh": 4, "B": 2, "G": 2}
    sizes = {dim: draw(st.integers(1, most[dim])) for dim in DIMS}
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    layer = Layer("random", **sizes, stride=stride)
    unroll = draw(st.sampled_from([best_tile(layer, target).unroll, {}]))
    chains = {}
    for dim in DIMS:
        unit = min(unroll.get(dim, 1), sizes[dim])
        whole = -(-sizes[dim] // unit)
        inside = draw(st.sets(st.integers(1, whole), max_size=2))
        chains[dim] = [*(unit * n for n in sorted(inside - {whole})), sizes[dim]]
    order = draw(st.permutations([dim for dim in DIMS for _ in chains[dim]]))
    string = " ".join(f"{dim}{chains[dim].pop(0)}" for dim in order)
    return parse_nest(string, layer, unroll), target
