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
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CUDA = "cuda"


class Training:
    """A loop of fixed shapes, whose tensors a plan can have."""

    def __init__(self) -> None:
        self.model = nn.Sequential(
            nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512)
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.out = torch.empty(0, device=CUDA)

    def step(self) -> None:
        x = torch.randn(2048, 512).cuda()
        self.out = self.model(x)  # lives on to the next step
        loss = self.out.square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def planned(self) -> torch.Tensor:
        """A tensor that lies in the plan's arena, if there is a plan."""
        return self.out.detach()


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


class Asked(Training):
    """What programs ask for, each a method."""

    # ---- with tensors that a plan may have: compile, share, fork

    def compiled_with_less_overhead(self) -> None:
        @torch.compile(mode="reduce-overhead")
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

        for _ in range(3):
            double(torch.ones(64, device=CUDA))

    def compiled_for_graphs_alone(self) -> None:
        @torch.compile(backend="cudagraphs")
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1

        for _ in range(3):
            double(torch.ones(64, device=CUDA))

    def fastest_convolution(self) -> None:
        torch.backends.cudnn.benchmark = True
        nn.Conv2d(3, 8, 3).cuda()(
            torch.randn(2, 3, 32, 32, device=CUDA)
        ).sum().backward()

    def shared_with_another_process(self) -> None:
        from torch.multiprocessing.reductions import reduce_tensor

        reduce_tensor(self.planned())

    def sent_to_another_process(self) -> None:
        import torch.multiprocessing as processes

        context = processes.get_context("spawn")
        queue = context.Queue()
        queue.put(self.planned())
        queue.close()
        queue.cancel_join_thread()

    def checkpointed(self) -> None:
        x = torch.randn(64, 512, device=CUDA, requires_grad=True)
        checkpoint(self.model, x, use_reentrant=False).sum().backward()
        checkpoint(self.model, x, use_reentrant=True).sum().backward()

    def profiled(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            self.step()
        found.key_averages().table(row_limit=3)

    def lazily_cloned(self) -> None:
        copy_on_write = torch._lazy_clone(self.planned())
        copy_on_write.add_(1)

    def resized(self) -> None:
        tensor = self.planned().clone()
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(1 << 20)

    def saved_and_copied(self) -> None:
        copy.deepcopy(self.model)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(self.model.state_dict(), Path(folder, "m.pt"))
            torch.load(Path(folder, "m.pt"), map_location=CUDA)

    def threads(self) -> None:
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

    def forked_workers(self) -> None:
        data = torch.utils.data.TensorDataset(torch.zeros(8, 4))
        for (batch,) in torch.utils.data.DataLoader(data, num_workers=2):
            batch.cuda()

    def in_parallel_over_nccl(self) -> None:
        _distributed("nccl")

    def in_parallel_over_gloo(self) -> None:
        _distributed("gloo")

    # ---- what they ask of torch.cuda about memory: counts, its end, pools and graphs

    def memory_fraction(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.05)
        try:
            torch.empty(
                torch.cuda.mem_get_info()[1] // 4, dtype=torch.uint8, device=CUDA
            )
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def out_of_memory_and_on(self) -> None:
        torch.cuda.set_per_process_memory_fraction(0.1)  # other programs may run, too
        blocks = []
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                blocks.append(torch.empty(1 << 29, dtype=torch.uint8, device=CUDA))
        del blocks
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        self.step()

    def history(self) -> None:
        torch.cuda.memory._record_memory_history()
        self.step()
        torch.cuda.memory._snapshot()
        with tempfile.TemporaryDirectory() as folder:
            torch.cuda.memory._dump_snapshot(str(Path(folder, "snapshot.pickle")))
        torch.cuda.memory._record_memory_history(enabled=None)

    def pool(self) -> None:
        own = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(own):
            block = torch.empty(1 << 22, device=CUDA)
            self.step()
        self.step()
        own.snapshot()
        del block

    def graph(self) -> None:
        x = torch.zeros(64, 512, device=CUDA)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x + x
        graph.replay()
        self.step()
        graph.reset()

    def graph_of_training(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.step()
        x = torch.randn(64, 512, device=CUDA)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.model(x).sum().backward()
        graph.replay()

    def graphed_callables(self) -> None:
        layer = nn.Linear(512, 512).cuda()
        torch.cuda.make_graphed_callables(layer, (torch.randn(8, 512, device=CUDA),))

    def record_stream(self) -> None:
        stream = torch.cuda.Stream()
        for _ in range(3):
            self.step()
            tensor = self.planned()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                tensor * 2
            tensor.record_stream(stream)

    def pinned(self) -> None:
        host = torch.empty(64, 512, pin_memory=True)
        host.copy_(self.planned(), non_blocking=True)
        host.cuda(non_blocking=True)
        torch.cuda.synchronize()

    def raw_blocks(self) -> None:
        at = torch.cuda.caching_allocator_alloc(1 << 20)
        torch.cuda.caching_allocator_delete(at)

    def without_caching(self) -> None:
        torch.cuda.caching_allocator_enable(False)
        try:
            self.step()
        finally:
            torch.cuda.caching_allocator_enable(True)

    def another_allocator(self) -> None:
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator("none.so", "a", "b")
        )


_NAMES = """
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved
    reset_peak_memory_stats memory_stats reset_accumulated_memory_stats memory_summary
    memory_snapshot mem_get_info empty_cache synchronize ipc_collect list_gpu_processes
    host_memory_stats get_per_process_memory_fraction memory_stats_as_nested_dict
    get_allocator_backend utilization
"""


def expressions(asked: Asked) -> dict[str, Callable[[], object]]:
    """What takes one line."""
    return {
        **{
            name: lambda name=name: getattr(torch.cuda, name)()
            for name in _NAMES.split()
        },
        **{
            f"accelerator_{name}": lambda name=name: getattr(torch.accelerator, name)()
            for name in ("memory_allocated", "memory_stats", "empty_cache")
        },
        "shared_by_torchs_own": lambda: (
            asked.planned().untyped_storage()._share_cuda_()
        ),
        "sanitized": lambda: importlib.import_module("torch.cuda._sanitizer"),
        "dlpack": lambda: torch.from_dlpack(asked.planned()),
        "out_of_memory": lambda: torch.empty(
            torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device=CUDA
        ),
        "beyond_all_bounds": lambda: torch.empty(1 << 62, device=CUDA),
        "observer_of_out_of_memory": lambda: (
            torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)
        ),
        "settings": lambda: torch.cuda.memory._set_allocator_settings(
            "max_split_size_mb:512"
        ),
    }


def main() -> None:
    asked = Asked()
    for _ in range(8):
        asked.step()
    if "--steps-only" in sys.argv:
        return
    calls = {name: getattr(asked, name) for name in vars(Asked) if name[0] != "_"}
    for name, function in (calls | expressions(asked)).items():
        try:
            function()
            outcome = "ends"
        except Exception as failure:
            outcome = type(failure).__name__
        print(f"{name}: {outcome}", flush=True)
        with contextlib.suppress(RuntimeError):
            asked.step()
    torch.cuda.synchronize()
    print("all: ends", flush=True)


if __name__ == "__main__":
    main()
