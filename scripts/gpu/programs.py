"""Ordinary programs on a GPU, none of which knows of memplan: what a plan may not harm.

    python scripts/gpu/programs.py NAME [--steps 40] [--seed 0]
    python scripts/gpu/programs.py --list

A program prints a number of each step, to the last bit, then `cuda {...}`: the device
memory that torch's allocator reserved, at most and at the end. `scripts/gpu/visit.py
programs` records each with 12 steps, plans it, and runs it with 40 under the plan.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA is used

import torch
from models.gpt2 import GPT2, CachedDecoder
from models.resnet import RESNET50, ResNet
from models.unet import UNet
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CUDA = "cuda"
WORDS = 8192
Step = Callable[[int], Tensor]
PROGRAMS: dict[str, Callable[[], Iterator[Tensor]]] = {}
# What only runs where kernels compute: sizes depend on values, or a compiler is needed.
HARDWARE = (
    *("compiled", "compiled_with_graphs", "fsdp", "distributed", "detector", "mixture"),
    *("captures_beside_frees", "recurrent", "fourier", "fastest_convolutions"),
)
STEPS = 40


def program(function: Callable[[], Iterator[Tensor]]) -> Callable[[], Iterator[Tensor]]:
    """Lists a program: an iterator that yields one number per step, without end."""
    PROGRAMS[function.__name__] = function
    return function


# ---- parts of them


def decoder(layers: int = 4, width: int = 512) -> nn.Module:
    return GPT2(WORDS, 1024, layers, width, 8).cuda()


def classifier() -> nn.Module:
    return ResNet(RESNET50, 16, 100).cuda()


def perceptron(width: int = 2048, layers: int = 4) -> nn.Sequential:
    parts = (m for _ in range(layers) for m in (nn.Linear(width, width), nn.GELU()))
    return nn.Sequential(*parts).cuda()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def words(count: int = 8, length: int = 256) -> Tensor:
    return torch.randint(WORDS, (count, length)).cuda()


def images(count: int = 16, size: int = 96) -> Tensor:
    return torch.randn(count, 3, size, size).cuda()


def text_loss(model: nn.Module, text: Tensor) -> Tensor:
    logits = model(text[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def image_loss(model: nn.Module, picture: Tensor) -> Tensor:
    target = torch.arange(len(picture), device=CUDA) % 10
    return functional.cross_entropy(model(picture), target)


def update(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def texts(batch: Callable[[int], Tensor], layers: int = 4) -> Iterator[Tensor]:
    """Trains a decoder on what `batch` gives for each step."""
    model = decoder(layers)
    optimizer = adam(model)
    for step in range(1 << 30):
        yield update(optimizer, text_loss(model, batch(step)))


# ---- training as it is written every day


@program
def language_model() -> Iterator[Tensor]:
    yield from texts(lambda _: words())


@program
def lengths_vary() -> Iterator[Tensor]:
    yield from texts(lambda _: words(8, random.randint(64, 384)))


@program
def lengths_grow() -> Iterator[Tensor]:
    yield from texts(lambda step: words(8, 64 + 8 * step))


@program
def a_short_last_batch() -> Iterator[Tensor]:
    yield from texts(lambda step: words(3 if step % 8 == 7 else 8))


@program
def batches_of_buckets() -> Iterator[Tensor]:
    yield from texts(lambda _: words(*random.choice(((16, 64), (8, 128), (2, 512)))))


@program
def image_classifier() -> Iterator[Tensor]:
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    while True:
        yield update(optimizer, image_loss(model, images()))


@program
def images_get_larger() -> Iterator[Tensor]:
    model = classifier()
    optimizer = adam(model)
    for step in range(1 << 30):
        yield update(optimizer, image_loss(model, images(16, 64 + 32 * (step // 10))))


@program
def fastest_convolutions() -> Iterator[Tensor]:
    """What they ask for depends on which was the fastest when tried."""
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = True
    model = classifier()
    optimizer = adam(model)
    while True:
        update(optimizer, image_loss(model, images(32)))
        yield torch.zeros(())


@program
def segmentation() -> Iterator[Tensor]:
    model = UNet().cuda()
    optimizer = adam(model)
    while True:
        scores = model(images(4, 128)).movedim(1, -1).flatten(0, -2)
        target = torch.arange(len(scores), device=CUDA) % 2
        yield update(optimizer, functional.cross_entropy(scores, target))


@program
def mixed_precision() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    while True:
        with torch.autocast(CUDA, torch.bfloat16):
            loss = text_loss(model, words())
        yield update(optimizer, loss)


@program
def scaled_gradients() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler(CUDA)
    while True:
        with torch.autocast(CUDA, torch.float16):
            loss = text_loss(model, words())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss.detach()


@program
def accumulated_and_clipped() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    while True:
        optimizer.zero_grad()
        for _ in range(4):
            loss = text_loss(model, words(2))
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.detach()


@program
def micro_batches_vary() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    while True:
        optimizer.zero_grad()
        for _ in range(random.randint(1, 4)):
            loss = text_loss(model, words(4))
            loss.backward()
        optimizer.step()
        yield loss.detach()


@program
def recomputed_activations() -> Iterator[Tensor]:
    layers = nn.ModuleList(perceptron(1024) for _ in range(6))
    optimizer = adam(layers)
    while True:
        x = torch.randn(2048, 1024).cuda().requires_grad_()
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        yield update(optimizer, x.square().mean())


@program
def recurrent() -> Iterator[Tensor]:
    table, layer = nn.Embedding(WORDS, 256).cuda(), nn.LSTM(256, 512, 2).cuda()
    head = nn.Linear(512, WORDS).cuda()
    optimizer = adam(nn.ModuleList([table, layer, head]))
    while True:
        text = words(16, random.randint(20, 120))
        scores = head(layer(table(text))[0])
        loss = functional.cross_entropy(scores.flatten(0, 1), text.flatten())
        yield update(optimizer, loss)


@program
def weights_in_half() -> Iterator[Tensor]:
    model = decoder().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        yield update(optimizer, text_loss(model, words()).float())


@program
def closure_many_times() -> Iterator[Tensor]:
    model = perceptron(1024, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=4)
    x = torch.randn(1024, 1024).cuda()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    while True:
        yield torch.as_tensor(float(optimizer.step(closure)))


@program
def sharpness_aware() -> Iterator[Tensor]:
    model = perceptron()
    optimizer = adam(model)
    while True:
        x = torch.randn(512, 2048).cuda()
        model(x).square().mean().backward()
        before = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad if p.grad is not None else p, alpha=0.05)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, old in zip(model.parameters(), before, strict=True):
                p.copy_(old)
        optimizer.step()
        yield loss.detach()


@program
def adversarial() -> Iterator[Tensor]:
    made, judge = perceptron(1024), perceptron(1024, 3)
    ours, theirs = adam(made), adam(judge)
    while True:
        fake = made(torch.randn(2048, 1024).cuda())
        real = torch.randn(2048, 1024).cuda()
        update(theirs, judge(fake.detach()).mean() - judge(real).mean())
        yield update(ours, -judge(fake).mean())


@program
def gradient_penalty() -> Iterator[Tensor]:
    judge = perceptron(1024)
    optimizer = adam(judge)
    while True:
        x = torch.randn(1024, 1024).cuda().requires_grad_()
        (slope,) = torch.autograd.grad(judge(x).sum(), x, create_graph=True)
        yield update(optimizer, (slope.norm(dim=1) - 1).square().mean())


@program
def distilled() -> Iterator[Tensor]:
    teacher, student = decoder(8), decoder(2)
    optimizer = adam(student)
    while True:
        text = words()
        with torch.no_grad():
            wanted = teacher(text).softmax(-1)
        loss = functional.cross_entropy(
            student(text).flatten(0, 1), wanted.flatten(0, 1)
        )
        yield update(optimizer, loss)


@program
def contrastive_with_queue() -> Iterator[Tensor]:
    model = perceptron(1024, 3)
    slow = copy.deepcopy(model)
    optimizer = adam(model)
    queue = torch.randn(16384, 1024).cuda()
    for step in range(1 << 30):
        x = torch.randn(1024, 1024).cuda()
        with torch.no_grad():
            for p, old in zip(model.parameters(), slow.parameters(), strict=True):
                old.lerp_(p, 0.01)
            key = functional.normalize(slow(x), dim=1)
        scores = functional.normalize(model(x), dim=1) @ queue.T
        target = torch.arange(1024, device=CUDA)
        yield update(optimizer, functional.cross_entropy(scores, target))
        queue[step % 16 * 1024 :][:1024] = key


@program
def policy_gradient() -> Iterator[Tensor]:
    model = perceptron(512, 3)
    optimizer = adam(model)
    while True:
        told, state = [], torch.randn(256, 512).cuda()
        for _ in range(random.randint(8, 24)):
            chances = model(state).log_softmax(-1)
            told.append(chances[:, 0])
            state = torch.randn(256, 512).cuda()
        yield update(optimizer, -torch.stack(told).mean())


@program
def replayed_experience() -> Iterator[Tensor]:
    model = perceptron(512, 3)
    optimizer = adam(model)
    memory: list[Tensor] = []
    while True:
        memory.extend(torch.randn(512).cuda() for _ in range(32))
        batch = torch.stack(random.sample(memory, 32))
        yield update(optimizer, model(batch).square().mean())


@program
def only_the_last_layers() -> Iterator[Tensor]:
    """The others are frozen, and thaw in step 20."""
    model = perceptron(2048, 6)
    for p in model[:8].parameters():
        p.requires_grad_(False)
    optimizer = adam(model)
    for step in range(1 << 30):
        if step == 20:
            for p in model.parameters():
                p.requires_grad_(True)
        x = torch.randn(2048, 2048).cuda()
        yield update(optimizer, model(x).square().mean())


@program
def mixture() -> Iterator[Tensor]:
    """Experts whose share of the words changes."""
    experts = nn.ModuleList(perceptron(512, 2) for _ in range(8))
    gate = nn.Linear(512, 8).cuda()
    optimizer = adam(nn.ModuleList([experts, gate]))
    while True:
        x = torch.randn(4096, 512).cuda()
        chosen = gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            (own,) = (chosen == i).nonzero(as_tuple=True)
            out = out.index_copy(0, own, expert(x[own]))
        yield update(optimizer, out.square().mean())


@program
def detector() -> Iterator[Tensor]:
    """As many boxes as there are good ones."""
    model = classifier()
    optimizer = adam(model)
    while True:
        scores = model(images(8, 128))
        good = scores[scores > scores.mean() + 0.1 * random.random()]
        pairs = (good[:, None] - good[None]).square().mean()
        yield update(optimizer, pairs)


@program
def fourier() -> Iterator[Tensor]:
    weight = torch.randn(32, 129, 256, dtype=torch.cfloat).cuda().requires_grad_()
    optimizer = torch.optim.Adam([weight])
    while True:
        x = torch.randn(16, 32, 256, 256).cuda()
        found = torch.fft.irfft2(
            torch.fft.rfft2(x) * weight.movedim(1, 2), s=(256, 256)
        )
        yield update(optimizer, found.square().mean())


# ---- beside the steps: evaluation, metrics, averages, checkpoints, prefetching


@program
def evaluated_in_between() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    for step in range(1 << 30):
        yield update(optimizer, text_loss(model, words()))
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    text_loss(model, words(24))
            model.train()


@program
def training_and_generation_by_turns() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    for step in range(1 << 30):
        yield update(optimizer, text_loss(model, words()))
        if step % 4 == 3:
            text = words(4, 16)
            with torch.no_grad():
                for _ in range(32):
                    following = model(text)[:, -1].argmax(-1, keepdim=True)
                    text = torch.cat([text, following % WORDS], 1)


@program
def metrics_on_the_gpu() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    losses, scores = [], []
    for step in range(1 << 30):
        text = words()
        loss = text_loss(model, text)
        losses.append(loss.detach())
        with torch.no_grad():
            scores.append(model(text[:1])[0].max(-1).values)
        yield update(optimizer, loss)
        if step % 20 == 19:
            torch.stack(losses).mean()
            torch.cat(scores).mean()
            losses, scores = [], []


@program
def one_loss_is_kept() -> Iterator[Tensor]:
    """With its graph: `total += loss`."""
    model = decoder()
    optimizer = adam(model)
    total = torch.zeros((), device=CUDA)
    while True:
        loss = text_loss(model, words())
        total = total + loss.detach()
        yield update(optimizer, loss)


@program
def averaged_late() -> Iterator[Tensor]:
    """An exponential average of the weights that begins in step 15."""
    model = decoder()
    optimizer = adam(model)
    average: nn.Module | None = None
    for step in range(1 << 30):
        yield update(optimizer, text_loss(model, words()))
        if step == 15:
            average = copy.deepcopy(model)
        if average is not None:
            with torch.no_grad():
                pairs = zip(model.parameters(), average.parameters(), strict=True)
                for p, old in pairs:
                    old.lerp_(p, 0.01)


@program
def best_weights_cloned() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    best: dict[str, Tensor] = {}
    for step in range(1 << 30):
        yield update(optimizer, text_loss(model, words()))
        if random.Random(step).random() < 0.2:
            best = {name: value.clone() for name, value in model.state_dict().items()}
    print(len(best))


@program
def saved_and_loaded() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1 << 30):
            yield update(optimizer, text_loss(model, words()))
            if step % 15 == 14:
                torch.save((model.state_dict(), optimizer.state_dict()), f"{folder}/a")
                weights, state = torch.load(f"{folder}/a", map_location=CUDA)
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)


@program
def small_blocks_that_stay() -> Iterator[Tensor]:
    """Four of 1.6 MB a step for ten steps, made in the midst of large ones."""
    layers = [perceptron(2048, 1) for _ in range(8)]
    optimizer = adam(nn.ModuleList(layers))
    kept: list[Tensor] = []
    for step in range(1 << 30):
        x = torch.randn(16384, 2048).cuda()
        for i, layer in enumerate(layers):
            x = layer(x)
            if i % 2 and 14 < step < 25:
                kept.append(torch.zeros(400_000, device=CUDA))
        yield update(optimizer, x.square().mean())


@program
def prefetched() -> Iterator[Tensor]:
    """The next batch comes over on a stream of its own."""
    side = torch.cuda.Stream()

    def fetch() -> Tensor:
        with torch.cuda.stream(side):
            return torch.randint(WORDS, (8, 256)).pin_memory().cuda(non_blocking=True)

    following = fetch()

    def batch(_: int) -> Tensor:
        nonlocal following
        torch.cuda.current_stream().wait_stream(side)
        text, following = following, fetch()
        text.record_stream(torch.cuda.current_stream())
        return text

    yield from texts(batch)


@program
def two_threads_and_streams() -> Iterator[Tensor]:
    """Each trains a model of its own."""
    models = [perceptron(1024), perceptron(1024)]
    turns = [threading.Barrier(3), threading.Barrier(3)]
    losses = [torch.zeros(()), torch.zeros(())]

    def work(which: int) -> None:
        data = torch.Generator().manual_seed(which)
        with torch.cuda.stream(torch.cuda.Stream()):
            model = models[which]
            optimizer = adam(model)
            while True:
                turns[0].wait()
                x = torch.randn(4096, 1024, generator=data).cuda()
                losses[which] = update(optimizer, model(x).square().mean()).cpu()
                turns[1].wait()

    for which in range(2):
        threading.Thread(target=work, args=(which,), daemon=True).start()
    while True:
        turns[0].wait()
        turns[1].wait()
        yield losses[0] + losses[1]


@program
def emptied_every_ten_steps() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    for step in range(1 << 30):
        yield update(optimizer, text_loss(model, words()))
        if step % 10 == 9:
            torch.cuda.empty_cache()


@program
def emptied_after_training() -> Iterator[Tensor]:
    """The GPU is handed over: something else of the same size comes in."""
    steps = texts(lambda _: words())
    for _ in range(STEPS - 10):
        yield next(steps)
    steps.close()
    del steps
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    print(f"reserved after it {reserved}", file=sys.stderr)
    x = torch.zeros(100 << 20, device=CUDA)
    while True:
        yield x[0].cpu()


@program
def folds() -> Iterator[Tensor]:
    """A new model every ten steps, as in cross-validation."""
    while True:
        steps = texts(lambda _: words())
        for _ in range(10):
            yield next(steps)
        steps.close()


# ---- graphs, compilers, several processes


@program
def graphs_after_training() -> Iterator[Tensor]:
    steps = texts(lambda _: words())
    for _ in range(STEPS - 10):
        yield next(steps)
    model = perceptron(1024)
    x = torch.randn(2048, 1024).cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = model(x)
    while True:
        graph.replay()
        yield y.sum().cpu()


@program
def graph_of_a_step() -> Iterator[Tensor]:
    """Every step is a replay, after a few that were not."""
    model = perceptron(1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4096, 1024).cuda()
    side = torch.cuda.Stream()
    for _ in range(10):
        with torch.cuda.stream(side):
            loss = model(x).square().mean()
            yield update(optimizer, loss)
        del loss  # its graph knows of the other stream
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        loss.backward()
    while True:
        x.copy_(torch.randn(4096, 1024))
        graph.replay()
        optimizer.step()
        yield loss.detach()


@program
def captures_beside_frees() -> Iterator[Tensor]:
    """25 captures a step; a thread frees blocks that a third stream uses."""
    model = perceptron(1024, 2)
    optimizer = adam(model)
    x = torch.randn(512, 1024).cuda()
    going = True

    def free() -> None:
        side, own = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(own):
            while going:
                block = torch.ones(1 << 18, device=CUDA)
                side.wait_stream(own)
                block.record_stream(side)
                with torch.cuda.stream(side):
                    block.add_(1)
                del block

    thread = threading.Thread(target=free, daemon=True)
    thread.start()
    try:
        while True:
            loss = update(optimizer, model(x).square().mean())
            for _ in range(25):
                graph = torch.cuda.CUDAGraph()
                with (
                    torch.cuda.graph(graph, capture_error_mode="thread_local"),
                    torch.no_grad(),
                ):
                    y = x * 2
                graph.replay()
                del graph, y
            yield loss
    finally:
        going = False
        thread.join()


@program
def compiled() -> Iterator[Tensor]:
    model = decoder()
    optimizer = adam(model)
    faster = torch.compile(model)
    while True:
        yield update(optimizer, text_loss(faster, words()))


@program
def compiled_with_graphs() -> Iterator[Tensor]:
    model = perceptron(1024)
    faster = torch.compile(model, mode="reduce-overhead")
    optimizer = adam(model)
    while True:
        x = torch.randn(4096, 1024).cuda()
        yield update(optimizer, faster(x).square().mean())


def _alone(backend: str) -> None:
    at = f"file://{tempfile.mkdtemp()}/store"
    torch.distributed.init_process_group(backend, init_method=at, rank=0, world_size=1)


@program
def distributed() -> Iterator[Tensor]:
    _alone("nccl")
    model = nn.parallel.DistributedDataParallel(decoder())
    optimizer = adam(model)
    while True:
        yield update(optimizer, text_loss(model, words()))


@program
def fsdp() -> Iterator[Tensor]:
    from torch.distributed.fsdp import fully_shard

    _alone("nccl")
    model = perceptron(2048, 8)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = adam(model)
    while True:
        x = torch.randn(4096, 2048).cuda()
        yield update(optimizer, model(x).square().mean())


# ---- inference


@program
def serving() -> Iterator[Tensor]:
    model = decoder(8).eval()
    while True:
        with torch.inference_mode():
            count, length = random.choice((1, 2, 4, 8, 16)), random.randint(16, 512)
            yield model(words(count, length))[0, -1].max()


@program
def serving_images() -> Iterator[Tensor]:
    model = classifier().eval()
    while True:
        with torch.inference_mode():
            yield model(images(64, 128)).max()


@program
def generation_with_cache() -> Iterator[Tensor]:
    model = CachedDecoder(WORDS, 1024, 4, 512, 8).cuda().eval()
    while True:
        with torch.inference_mode(), torch.device(CUDA):
            text = words(8, random.randint(16, 64))
            scores, cache = model(text, None)
            for _ in range(32):
                text = scores.argmax(-1, keepdim=True)
                scores, cache = model(text, cache)
            yield scores.max()


@program
def tiny() -> Iterator[Tensor]:
    """Little memory: an arena of a few MiB."""
    model = perceptron(256, 4)
    optimizer = adam(model)
    while True:
        x = torch.randn(512, 256).cuda()
        yield update(optimizer, model(x).square().mean())


@program
def diffusion_sampling() -> Iterator[Tensor]:
    model = UNet().cuda().eval()
    while True:
        with torch.no_grad():
            x = images(4, 128)
            for _ in range(4):
                x = x - 0.1 * model(x).mean(1, keepdim=True)
            yield x.mean()


def main() -> None:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("name", nargs="?", choices=sorted(PROGRAMS), metavar="NAME")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="their names")
    parser.add_argument("--no-cudnn", action="store_true", help="where it is not there")
    args = parser.parse_args()
    if args.list or args.name is None:
        print("\n".join(PROGRAMS))
        return
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    torch.backends.cudnn.enabled = not args.no_cudnn
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # none is read
    steps = PROGRAMS[args.name]()
    for step, value in zip(range(args.steps), steps, strict=False):
        print(f"step {step} {float(value).hex()}", flush=True)
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    said = {
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
        "at_the_end": stats["reserved_bytes.all.current"],
    }
    steps.close()
    print(f"cuda {json.dumps(said)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
