"""Train a network or run its inference on random data: programs to record and plan.

    python scripts/program.py resnet50 --train --batch-size 6 --steps 10
    python scripts/program.py decoder --infer --longest 50 --words 100
    python scripts/program.py gpt2 --train --help

Nothing here knows of memplan. Each step's loss is printed to the last bit, so that two
runs compute the same exactly when they print the same digest.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from random_data import LoadedImages, RandomImages, Sentences
from step_log import StepLog
from torch import Tensor, nn
from torch.nn import functional

EVALUATED = 2  # batches at the end of an epoch

Run = Callable[[nn.Module, argparse.Namespace], None]


def train_images(model: nn.Module, args: argparse.Namespace) -> None:
    """Train a classifier with SGD and momentum.

    With --epoch, each epoch ends with a short batch and an evaluation; with
    --accumulated, a step adds up the gradients of several batches, the last of them
    short.
    """
    if args.compiled:
        # Compile in this process: a pool of compilers would be measured as well.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        model.compile()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=0.9, weight_decay=1e-4
    )
    data = LoadedImages(args) if args.workers else RandomImages(args)
    log = StepLog()
    for step in range(1, args.steps + 1):
        ends = args.epoch > 0 and step % args.epoch == 0
        optimizer.zero_grad()
        total = 0.0
        for number in range(1, args.accumulated + 1):
            short = number == args.accumulated if args.accumulated > 1 else ends
            images, labels = data.draw(short=short)
            loss = functional.cross_entropy(model(images), labels) / args.accumulated
            loss.backward()
            total += loss.item()
        optimizer.step()
        log.step(total)
        if ends:
            evaluate_images(model, data)
    log.finish()


@torch.no_grad()
def evaluate_images(model: nn.Module, data: RandomImages | LoadedImages) -> None:
    """Run some batches without gradients, and return to training."""
    model.eval()
    for _ in range(EVALUATED):
        model(data.draw()[0])
    model.train()


@torch.inference_mode()
def infer_images(model: nn.Module, args: argparse.Namespace) -> None:
    """Evaluate batch after batch; with --serve, from a pool of threads."""
    model.eval()
    log = StepLog()
    if args.serve:
        with ThreadPoolExecutor(args.serve) as pool:
            requests = range(args.steps)  # whose answers come in this order
            for found in pool.map(lambda i: answer(model, args, i), requests):
                log.step(found)
    else:
        data = RandomImages(args)
        for _ in range(args.steps):
            images, labels = data.draw()
            log.step(functional.cross_entropy(model(images), labels).item())
    log.finish()


def answer(model: nn.Module, args: argparse.Namespace, number: int) -> float:
    """The largest logit for the images of request `number`, the same every time."""
    generator = torch.Generator().manual_seed(args.seed + number)
    count = 1 + number * 7 % args.batch_size if args.mixed else args.batch_size
    shape = (count, 3, args.image_size, args.image_size)
    with torch.inference_mode():
        return float(model(torch.randn(shape, generator=generator)).max())


def train_text(model: nn.Module, args: argparse.Namespace) -> None:
    """Train on random tokens to predict the next one."""
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    shape = (args.batch_size, args.sequence_length + 1)
    log = StepLog()
    for _ in range(args.steps):
        text = torch.randint(args.vocabulary, shape, generator=generator)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            logits = model(text[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        log.step(loss.item())
    log.finish()


@torch.inference_mode()
def generate_text(model: nn.Module, args: argparse.Namespace) -> None:
    """Continue prompts of random lengths token by token, with a growing cache."""
    model.eval()
    generator = torch.Generator().manual_seed(args.seed)
    log = StepLog()
    for _ in range(args.steps):
        bounds = (args.shortest, args.longest + 1)
        length = int(torch.randint(*bounds, (1,), generator=generator))
        shape = (args.batch_size, length)
        tokens = torch.randint(args.vocabulary, shape, generator=generator)
        caches, total = None, 0.0
        for _ in range(args.words):
            logits, caches = model(tokens, caches)
            likeliest, tokens = logits.log_softmax(1).max(1, keepdim=True)
            total -= likeliest.mean().item()
        log.step(total / args.words)
    log.finish()


def train_sentences(model: nn.Module, args: argparse.Namespace) -> None:
    """Train an encoder-decoder on sentences of random lengths: all steps differ.

    The last evaluation's loss counts in the digest as well.
    """
    # Nested tensors, which evaluation would use, warn that they are a prototype.
    torch.backends.mha.set_fastpath_enabled(False)
    optimizer: torch.optim.Optimizer
    if args.network == "translator":
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    else:
        optimizer = torch.optim.SGD(
            model.parameters(), lr=args.learning_rate, momentum=0.9
        )
    sentences, log, evaluated = Sentences(args), StepLog(), 0.0
    for step in range(1, args.steps + 1):
        source, target = sentences.draw()
        optimizer.zero_grad()
        loss = sentence_loss(model, source, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if args.epoch and step % args.epoch == 0:
            evaluated = evaluate_sentences(model, sentences)
        log.step(loss.item() + evaluated)
    log.finish()


def sentence_loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    """The mean loss of each next word."""
    begin = functional.pad(target[:, :-1], (1, 0), value=1)
    logits = model(source, begin)
    return functional.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=0
    )


@torch.no_grad()
def evaluate_sentences(model: nn.Module, sentences: Sentences) -> float:
    """The mean loss of some batches, before training goes on."""
    model.eval()
    batches = (sentences.draw() for _ in range(EVALUATED))
    losses = [sentence_loss(model, *batch).item() for batch in batches]
    model.train()
    return sum(losses) / len(losses)


def train_gan(model: nn.Module, args: argparse.Namespace) -> None:
    """Train a generator and a discriminator in turn, with an optimizer for each."""
    generator, discriminator = model.children()
    random = torch.Generator().manual_seed(args.seed)
    first, second = (
        torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for part in (generator, discriminator)
    )
    true, false = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)
    loss_of = functional.binary_cross_entropy_with_logits
    log = StepLog()
    for _ in range(args.steps):
        real = torch.randn(args.batch_size, 3, 64, 64, generator=random)
        noise = torch.randn(args.batch_size, args.noise, 1, 1, generator=random)
        images = generator(noise)

        discriminator.zero_grad()
        on_real = loss_of(discriminator(real), true)
        on_made = loss_of(discriminator(images.detach()), false)
        (on_real + on_made).backward()
        second.step()

        generator.zero_grad()
        fooled = loss_of(discriminator(images), true)
        fooled.backward()
        first.step()
        log.step((on_real + on_made + 3 * fooled).item())
    log.finish()


# Models are imported when they are built: a recording sees no others.
def model(place: str, *options: str) -> Callable[[argparse.Namespace], nn.Module]:
    """What builds `module:class` of models/ from the values of these options."""
    module, _, name = place.partition(":")

    def build(args: argparse.Namespace) -> nn.Module:
        made = getattr(importlib.import_module(f"models.{module}"), name)
        found: nn.Module = made(*(getattr(args, option) for option in options))
        return found

    return build


def gpt2(args: argparse.Namespace) -> nn.Module:
    from models.gpt2 import GPT2

    context = max(1024, args.sequence_length)
    return GPT2(args.vocabulary, context, args.layers, args.width, args.heads)


def decoder(args: argparse.Namespace) -> nn.Module:
    from models.gpt2 import CachedDecoder

    context = args.longest + args.words
    return CachedDecoder(args.vocabulary, context, args.layers, args.width, args.heads)


def gan(args: argparse.Namespace) -> nn.Module:
    from models.gan import discriminator, generator

    return nn.ModuleList([generator(args.noise, args.width), discriminator(args.width)])


Options = Mapping[str, Any]


@dataclass(frozen=True)
class Network:
    """A network, what runs it, and its options with their defaults.

    for_train, for_infer: defaults that only that mode has, or has otherwise.
    """

    build: Callable[[argparse.Namespace], nn.Module]
    train: Run | None
    infer: Run | None
    options: Options = field(default_factory=dict)
    for_train: Options = field(default_factory=dict)
    for_infer: Options = field(default_factory=dict)

    def defaults(self, mode: str) -> dict[str, Any]:
        """All options of a mode, "train" or "infer"."""
        own = self.for_train if mode == "train" else self.for_infer
        return {**self.options, **own}


TRAINED_IMAGES = {"learning_rate": 0.01, "epoch": 0, "accumulated": 1} | {
    "workers": 0,
    "compiled": False,
}
SERVED_IMAGES = {"serve": 0, "mixed": False, "steps": 20}
SENTENCES = {"shortest": 10, "longest": 50, "vocabulary": 8000, "width": 512}


def classifier(
    build: Callable[[argparse.Namespace], nn.Module],
    options: Options,
    for_train: Options,
    for_infer: Options,
) -> Network:
    """A network of images."""
    trained, served = TRAINED_IMAGES | for_train, SERVED_IMAGES | for_infer
    own = {"classes": 1000} | options
    return Network(build, train_images, infer_images, own, trained, served)


NETWORKS = {
    "alexnet": classifier(
        model("vision:alexnet", "classes"),
        {"image_size": 224},
        {"batch_size": 32},
        {"batch_size": 1},
    ),
    "googlenet": classifier(
        model("googlenet:GoogLeNet", "classes"),
        {},
        {"batch_size": 12, "image_size": 160},
        {"batch_size": 1, "image_size": 224},
    ),
    "resnet50": classifier(
        model("resnet:ResNet", "layers", "width", "classes"),
        {"layers": (3, 4, 6, 3), "width": 64},
        {"batch_size": 6, "image_size": 160},
        {"batch_size": 4, "image_size": 224},
    ),
    "vit": classifier(
        model(
            "gpt2:VisionTransformer",
            *("image_size", "classes"),
            *("layers", "width", "heads", "checkpointed"),
        ),
        {"image_size": 128, "layers": 6, "width": 192, "heads": 3}
        | {"checkpointed": False, "batch_size": 8},
        {},
        {},
    ),
    "gpt2": Network(
        gpt2,
        train_text,
        None,
        {"batch_size": 1, "sequence_length": 256, "layers": 12, "width": 768}
        | {"heads": 12, "vocabulary": 50257, "learning_rate": 6e-4, "autocast": False},
    ),
    "decoder": Network(
        decoder,
        None,
        generate_text,
        {"batch_size": 16, "words": 64, "shortest": 16, "longest": 96, "steps": 12}
        | {"vocabulary": 8000, "layers": 6, "width": 384, "heads": 6},
    ),
    "seq2seq": Network(
        model("seq2seq:Seq2Seq", "vocabulary", "width", "layers"),
        train_sentences,
        None,
        SENTENCES
        | {"layers": 2, "batch_size": 32, "steps": 200}
        | {"learning_rate": 0.1, "epoch": 0},
    ),
    "translator": Network(
        model("seq2seq:Translator", "vocabulary", "width", "layers", "heads"),
        train_sentences,
        None,
        SENTENCES
        | {"width": 192, "layers": 3, "heads": 4, "longest": 64}
        | {"batch_size": 16, "steps": 60, "learning_rate": 5e-4, "epoch": 12},
    ),
    "gan": Network(gan, train_gan, None, {"batch_size": 32, "noise": 100, "width": 32}),
}
HELP = {
    "threads": "number of threads [default: PyTorch's choice]",
    "image_size": "pixels per side",
    "epoch": "steps before a short batch and an evaluation; 0: no epochs",
    "accumulated": "batches per step",
    "workers": "processes that make the batches",
    "compiled": "use torch.compile",
    "checkpointed": "keep only the inputs of each block",
    "serve": "answer requests from so many threads",
    "mixed": "requests of 1 to --batch-size images",
    "autocast": "compute in bfloat16",
    "words": "words to generate for each sentence",
    "layers": "number of layers, or of blocks in each stage",
}


COMMON = {"steps": 10, "seed": 0, "threads": 0}


def parse_arguments() -> argparse.Namespace:
    """The network, the mode, and the options that they have, all with a value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    networks = parser.add_subparsers(dest="network", required=True)
    chosen = "infer" if "--infer" in sys.argv else "train"
    for name, network in NETWORKS.items():
        own = networks.add_parser(name)
        mode = own.add_mutually_exclusive_group(required=True)
        for kind, run in (("train", network.train), ("infer", network.infer)):
            if run is not None:
                mode.add_argument(
                    f"--{kind}", dest="mode", action="store_const", const=kind
                )
        for option, default in (COMMON | network.defaults(chosen)).items():
            settings: dict[str, Any] = {"default": default, "type": type(default)}
            text = HELP.get(option, option.replace("_", " "))
            if isinstance(default, bool):
                settings = {"action": "store_true"}
            elif isinstance(default, tuple):
                settings |= {"type": int, "nargs": len(default)}
            if "[default" not in text and not isinstance(default, bool):
                text += " [default: %(default)s]"
            own.add_argument(f"--{option.replace('_', '-')}", help=text, **settings)
    args = parser.parse_args()
    if getattr(args, "shortest", 1) > getattr(args, "longest", 1):
        parser.error("--shortest is more than --longest")
    if args.steps < 1 or min(args.batch_size, getattr(args, "words", 1)) < 1:
        parser.error("--steps, --batch-size and --words must be at least 1")
    return args


def main() -> None:
    """Run the network that the command line names."""
    args = parse_arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    network = NETWORKS[args.network]
    run = network.train if args.mode == "train" else network.infer
    assert run is not None
    run(network.build(args), args)


if __name__ == "__main__":
    main()
