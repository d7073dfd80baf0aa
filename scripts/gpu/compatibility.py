"""What programs ask of torch.cuda beside tensors, each call with how it ended.

    python scripts/gpu/compatibility.py > native.txt
    memplan record --device cuda -o t.parquet scripts/gpu/compatibility.py --steps-only
    memplan solve t.parquet -o p.json
    memplan apply -q p.json scripts/gpu/compatibility.py > planned.txt
    diff native.txt planned.txt

A line is a call's name, and "ends" or the class of its exception: no values, so that
two runs compare. Training steps go on before, between and after the calls.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CALLS: dict[str, Callable[[], object]] = {}
CUDA = "cuda"


def call(function: Callable[[], object]) -> Callable[[], object]:
    """Have it called, and told by its name."""
    CALLS[function.__name__] = function
    return function


class Training:
    """A loop of fixed shapes, whose tensors a plan can have."""

    def __init__(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.out = torch.empty(0, device=CUDA)

    def step(self) -> None:
        x = torch.randn(64, 512).cuda()
        self.out = self.model(x)  # lives on to the next step
        loss = self.out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


training = Training()


def planned() -> torch.Tensor:
    """A tensor that lies in the plan's arena, if there is a plan."""
    return training.out.detach()


# ---- what programs do beside, with tensors that a plan may have: compile, share, fork


@call
def compiled_with_less_overhead() -> None:
    @torch.compile(mode="reduce-overhead")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    for _ in range(3):
        double(torch.ones(64, device=CUDA))


@call
def compiled_for_graphs_alone() -> None:
    @torch.compile(backend="cudagraphs")
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    for _ in range(3):
        double(torch.ones(64, device=CUDA))


@call
def fastest_convolution() -> None:
    torch.backends.cudnn.benchmark = True
    nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32, device=CUDA)).sum().backward()


@call
def shared_with_another_process() -> None:
    from torch.multiprocessing.reductions import reduce_tensor

    reduce_tensor(planned())


@call
def sent_to_another_process() -> None:
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue = context.Queue()
    queue.put(planned())
    queue.close()
    queue.cancel_join_thread()


@call
def checkpointed() -> None:
    x = torch.randn(64, 512, device=CUDA, requires_grad=True)
    checkpoint(training.model, x, use_reentrant=False).sum().backward()
    checkpoint(training.model, x, use_reentrant=True).sum().backward()


@call
def profiled() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        training.step()
    found.key_averages().table(row_limit=3)


@call
def lazily_cloned() -> None:
    copy_on_write = torch._lazy_clone(planned())
    copy_on_write.add_(1)


@call
def resized() -> None:
    tensor = planned().clone()
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(1 << 20)


@call
def saved_and_copied() -> None:
    copy.deepcopy(training.model)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(training.model.state_dict(), Path(folder, "m.pt"))
        torch.load(Path(folder, "m.pt"), map_location=CUDA)


@call
def threads() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    torch.empty(1 << 16, device=CUDA)
        except BaseException as failure:  # told by the thread that waits
            failures.append(failure)

    running = [threading.Thread(target=work) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]


@call
def forked_workers() -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(8, 4))
    for (batch,) in torch.utils.data.DataLoader(data, num_workers=2):
        batch.cuda()


@call
def in_parallel_over_nccl() -> None:
    _distributed("nccl")


@call
def in_parallel_over_gloo() -> None:
    _distributed("gloo")


def _distributed(backend: str) -> None:
    from torch import distributed

    with tempfile.TemporaryDirectory() as folder:
        at = f"file://{folder}/store"
        distributed.init_process_group(backend, init_method=at, rank=0, world_size=1)
        try:
            layer = nn.Linear(64, 64).cuda()
            model = nn.parallel.DistributedDataParallel(layer)
            model(torch.randn(4, 64, device=CUDA)).sum().backward()
        finally:
            distributed.destroy_process_group()


# ---- what they ask of torch.cuda about memory: counts, its end, pools and graphs

_NAMES = """
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved
    reset_peak_memory_stats memory_stats reset_accumulated_memory_stats memory_summary
    memory_snapshot mem_get_info empty_cache synchronize ipc_collect list_gpu_processes
    host_memory_stats get_per_process_memory_fraction memory_stats_as_nested_dict
    get_allocator_backend utilization
"""
EXPRESSIONS: dict[str, Callable[[], object]] = {
    **{name: lambda name=name: getattr(torch.cuda, name)() for name in _NAMES.split()},
    **{
        f"accelerator_{name}": lambda name=name: getattr(torch.accelerator, name)()
        for name in ("memory_allocated", "memory_stats", "empty_cache")
    },
    "shared_by_torchs_own": lambda: planned().untyped_storage()._share_cuda_(),
    "sanitized": lambda: importlib.import_module("torch.cuda._sanitizer"),
    "dlpack": lambda: torch.from_dlpack(planned()),
    "out_of_memory": lambda: torch.empty(
        torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device=CUDA
    ),
    "beyond_all_bounds": lambda: torch.empty(1 << 62, device=CUDA),
    "observer_of_out_of_memory": lambda: torch._C._cuda_attach_out_of_memory_observer(
        lambda *_: None
    ),
    "settings": lambda: torch.cuda.memory._set_allocator_settings(
        "max_split_size_mb:512"
    ),
}


@call
def memory_fraction() -> None:
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        torch.empty(torch.cuda.mem_get_info()[1] // 4, dtype=torch.uint8, device=CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@call
def out_of_memory_and_on() -> None:
    blocks = []
    with contextlib.suppress(torch.OutOfMemoryError):
        while True:
            blocks.append(torch.empty(1 << 29, dtype=torch.uint8, device=CUDA))
    del blocks
    torch.cuda.empty_cache()
    training.step()


@call
def history() -> None:
    torch.cuda.memory._record_memory_history()
    training.step()
    torch.cuda.memory._snapshot()
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(str(Path(folder, "snapshot.pickle")))
    torch.cuda.memory._record_memory_history(enabled=None)


@call
def pool() -> None:
    own = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(own):
        block = torch.empty(1 << 22, device=CUDA)
        training.step()
    training.step()
    own.snapshot()
    del block


@call
def graph() -> None:
    x = torch.zeros(64, 512, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + x
    graph.replay()
    training.step()
    graph.reset()


@call
def graph_of_training() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        training.step()
    x = torch.randn(64, 512, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    training.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        training.model(x).sum().backward()
    graph.replay()


@call
def graphed_callables() -> None:
    layer = nn.Linear(512, 512).cuda()
    torch.cuda.make_graphed_callables(layer, (torch.randn(8, 512, device=CUDA),))


@call
def record_stream() -> None:
    stream = torch.cuda.Stream()
    for _ in range(3):
        training.step()
        tensor = planned()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            tensor * 2
        tensor.record_stream(stream)


@call
def pinned() -> None:
    host = torch.empty(64, 512, pin_memory=True)
    host.copy_(planned(), non_blocking=True)
    host.cuda(non_blocking=True)
    torch.cuda.synchronize()


@call
def raw_blocks() -> None:
    at = torch.cuda.caching_allocator_alloc(1 << 20)
    torch.cuda.caching_allocator_delete(at)


@call
def without_caching() -> None:
    torch.cuda.caching_allocator_enable(False)
    try:
        training.step()
    finally:
        torch.cuda.caching_allocator_enable(True)


@call
def another_allocator() -> None:
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator("none.so", "a", "b")
    )


def main() -> None:
    for _ in range(8):
        training.step()
    if "--steps-only" in sys.argv:
        return
    for name, function in (CALLS | EXPRESSIONS).items():
        try:
            function()
            outcome = "ends"
        except Exception as failure:
            outcome = type(failure).__name__
        print(f"{name}: {outcome}", flush=True)
        with contextlib.suppress(RuntimeError):
            training.step()
    torch.cuda.synchronize()
    print("all: ends", flush=True)
    sys.stdout.flush()
    if os.environ.get("COMPATIBILITY_ABRUPT"):
        os._exit(0)


if __name__ == "__main__":
    main()
