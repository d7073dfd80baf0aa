"""What programs ask of torch.cuda about memory: counts, its end, pools and graphs."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import torch
from calls import CALLS, CUDA, call, planned, training
from torch import nn

for name in (
    *("memory_allocated", "max_memory_allocated", "memory_reserved"),
    *("max_memory_reserved", "reset_peak_memory_stats", "memory_stats"),
    *("reset_accumulated_memory_stats", "memory_summary", "memory_snapshot"),
    *("mem_get_info", "empty_cache", "synchronize", "ipc_collect"),
    *("list_gpu_processes", "host_memory_stats", "get_per_process_memory_fraction"),
    *("memory_stats_as_nested_dict", "get_allocator_backend", "utilization"),
):

    def plain(name: str = name) -> object:
        return getattr(torch.cuda, name)()

    plain.__name__ = name
    CALLS.append(plain)


@call
def accelerator_memory() -> object:
    memory = torch.accelerator
    return memory.memory_allocated(), memory.memory_stats(), memory.empty_cache()


@call
def memory_fraction() -> None:
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        torch.empty(torch.cuda.mem_get_info()[1] // 4, dtype=torch.uint8, device=CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@call
def out_of_memory() -> None:
    torch.empty(torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device=CUDA)


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
def beyond_all_bounds() -> None:
    torch.empty(1 << 62, dtype=torch.uint8, device=CUDA)


@call
def history() -> None:
    torch.cuda.memory._record_memory_history()
    training.step()
    torch.cuda.memory._snapshot()
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.memory._dump_snapshot(str(Path(folder, "snapshot.pickle")))
    torch.cuda.memory._record_memory_history(enabled=None)


@call
def observer_of_out_of_memory() -> None:
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)


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
def settings() -> None:
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:512")


@call
def another_allocator() -> None:
    torch.cuda.memory.change_current_allocator(
        torch.cuda.memory.CUDAPluggableAllocator("none.so", "a", "b")
    )
