"""What programs do beside, with tensors that a plan may have: compile, share, fork."""

from __future__ import annotations

import copy
import tempfile
import threading
from pathlib import Path

import torch
from calls import CUDA, call, planned, training
from torch import nn
from torch.utils.checkpoint import checkpoint


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
def shared_by_torchs_own() -> None:
    planned().untyped_storage()._share_cuda_()


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
def sanitized() -> None:
    import torch.cuda._sanitizer  # noqa: F401


@call
def dlpack() -> None:
    torch.from_dlpack(planned())


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
