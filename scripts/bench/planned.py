"""What other runtimes need for a model's activations.

ONNX Runtime: live bytes of the heap (heap.c, preloaded into its process), at most
during a run after two others, beyond those before the run. With its arena: beyond those
before the first run, since it keeps the arena; weights then lie outside it. ExecuTorch:
the buffers that it plans, without the inputs; kernels may need more.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.runner import Contender, Figures
from bench.worker import Worker

HEAP = Path(__file__).parent / "heap.c"
SECONDS = 900  # for an export, or a run


def exported(model: Any, inputs: tuple[Any, ...], folder: Path) -> Path:
    """The model as an ONNX file, by torch's older exporter, which folds normalization
    and needs fewest packages; by the newer where that fails."""
    import torch

    file = folder / "model.onnx"
    with contextlib.suppress(torch.onnx.errors.OnnxExporterError, RuntimeError):
        torch.onnx.export(model, inputs, str(file), dynamo=False)
        return file
    torch.onnx.export(model, inputs, str(file), dynamo=True)
    return file


def counter(folder: Path) -> Path:
    """The library that counts the heap's bytes."""
    library = folder / "heap.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HEAP)]
    subprocess.run(command, check=True)
    return library


def contenders(build: Callable[[], Any], folder: Path, threads: int) -> list[Contender]:
    """ONNX Runtime without and with its arena, and ExecuTorch, for a model.

    Each runs in a process of its own, which starts when it is first asked.
    """
    return [
        Contender(title, _Peer(make, build, folder, threads).run)
        for title, make in (
            ("ONNX Runtime, no arena", partial(_onnxruntime, False)),
            ("ONNX Runtime", partial(_onnxruntime, True)),
            ("ExecuTorch", _executorch),
        )
    ]


class _Peer:
    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self._make, self._given = make, given
        self._worker: Worker | None = None

    def run(self) -> Figures:
        if self._worker is None:
            heap = {"LD_PRELOAD": str(counter(self._given[1]))}
            environment = {**heap, "PYTHONMALLOC": "malloc"}
            self._worker = Worker(self._make, *self._given, environment=environment)
            self._worker.answer(SECONDS)
        return dict(self._worker.answer(SECONDS))


def _onnxruntime(
    arena: bool, build: Callable[[], Any], folder: Path, threads: int
) -> Callable[[], Figures]:
    import onnxruntime

    model, inputs = build()
    own = Path(tempfile.mkdtemp(dir=folder))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = arena
    options.add_session_config_entry(
        "session.use_device_allocator_for_initializers", "1"
    )
    session = onnxruntime.InferenceSession(
        str(exported(model, inputs, own)), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    given = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
    del model
    gc.collect()
    gc.disable()  # nothing else is freed during a run
    heap = ctypes.CDLL(None)
    for each in (heap.heap_live, heap.heap_peak):
        each.restype = ctypes.c_long
    first = heap.heap_live()

    def run() -> Figures:
        before = heap.heap_live()
        heap.heap_reset()
        results = session.run(None, given)
        most = heap.heap_peak()
        del results
        return {"activations": most - (first if arena else before)}

    run(), run()
    return run


def _executorch(build: Callable[[], Any], *_: object) -> Callable[[], Figures]:
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    model, inputs = build()
    with torch.no_grad():
        program = torch.export.export(model, inputs, strict=False)
    planning = MemoryPlanningPass(alloc_graph_input=False)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    made = to_edge(program).to_executorch(config).executorch_program
    planned = sum(made.execution_plan[0].non_const_buffer_sizes)
    return lambda: {"activations": planned}
