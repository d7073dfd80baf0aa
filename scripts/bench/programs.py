"""The programs to measure, and the allocators to measure them under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent

LIBRARY_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    )
)


@dataclass(frozen=True)
class Program:
    """A script, its arguments at the size to measure, and at a size to try out.

    steps: of a measured run, where those asked for would be too few; recorded: steps of
    the run that the plan is made from, None for as many; marks: boundaries in each of
    its steps, where an optimizer steps or else the outermost module is called.
    """

    script: str
    arguments: tuple[str, ...]
    tiny: tuple[str, ...]
    steps: int = 0
    recorded: int | None = None
    marks: int = 1

    def command(self, steps: int, threads: int, tiny: bool) -> list[str]:
        """The script's path, then its arguments."""
        sizes = self.tiny if tiny else self.arguments
        counts = ["--steps", str(steps), "--threads", str(threads)]
        return [str(SCRIPTS / self.script), *sizes, *counts]


def _arguments(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TINY_RESNET = "--batch-size 2 --image-size 32 --layers 1 1 1 1 --width 8 --classes 10"
_TINY_TRANSFORMER = (
    "--batch-size 2 --image-size 32 --layers 1 --width 16 --heads 2 --classes 10"
)

PROGRAMS = {
    "resnet50": Program(
        "train_resnet50.py",
        _arguments("--batch-size 6 --image-size 160"),
        _arguments(_TINY_RESNET),
    ),
    "gpt2": Program(
        "train_gpt2.py",
        _arguments("--batch-size 1 --sequence-length 256"),
        _arguments(
            "--batch-size 1 --sequence-length 8 --layers 1 --width 16 --heads 2 "
            "--vocabulary 50"
        ),
    ),
    "googlenet": Program(
        "train_googlenet.py",
        _arguments("--batch-size 12 --image-size 160"),
        _arguments("--batch-size 2 --image-size 32 --classes 10"),
    ),
    "infer": Program(
        "infer_resnet50.py",
        _arguments("--batch-size 4 --image-size 224"),
        _arguments(_TINY_RESNET),
    ),
    "seq2seq": Program(
        "train_seq2seq.py",
        _arguments("--batch-size 32 --longest 50"),
        _arguments("--batch-size 2 --longest 12 --vocabulary 50 --width 16"),
        steps=200,
        recorded=24,
    ),
    "serve": Program(
        "serve_threads.py",
        _arguments("--workers 4 --batch-size 4"),
        _arguments(_TINY_RESNET),
        steps=80,
        recorded=40,
    ),
    "serve-mixed": Program(
        "serve_threads.py",
        _arguments("--workers 4 --batch-size 6 --mixed"),
        _arguments(f"--mixed {_TINY_RESNET}"),
        steps=80,
        recorded=40,
    ),
    "generate": Program(
        "generate_text.py",
        _arguments("--batch-size 16 --words 64"),
        _arguments(
            "--batch-size 2 --longest 20 --layers 1 --width 16 --heads 2 "
            "--vocabulary 50"
        ),
        steps=12,
        recorded=6,
        marks=64,
    ),
    "translator": Program(
        "train_translator.py",
        _arguments("--batch-size 16 --longest 64 --epoch 12"),
        _arguments(
            "--batch-size 2 --longest 12 --epoch 3 --evaluated 1 --layers 1 --width 16 "
            "--heads 2 --vocabulary 50"
        ),
        steps=48,
        recorded=24,
    ),
    "gan": Program(
        "train_gan.py",
        _arguments("--batch-size 32"),
        _arguments("--batch-size 2 --noise 8 --width 4"),
        marks=2,
    ),
    "accumulating": Program(
        "train_accumulating.py",
        _arguments("--batch-size 8 --accumulated 4 --epoch 5"),
        _arguments(f"--accumulated 2 --epoch 3 {_TINY_RESNET} --batch-size 4"),
    ),
    "compiled": Program(
        "train_vit.py",
        _arguments("--compiled --batch-size 8 --layers 4"),
        _arguments(f"--compiled {_TINY_TRANSFORMER}"),
    ),
    "checkpointed": Program(
        "train_vit.py",
        _arguments("--checkpointed --batch-size 12 --layers 6"),
        _arguments(f"--checkpointed {_TINY_TRANSFORMER}"),
    ),
    "autocast": Program(
        "train_gpt2.py",
        _arguments(
            "--autocast --batch-size 4 --sequence-length 256 --layers 4 --width 192 "
            "--heads 3 --vocabulary 8000"
        ),
        _arguments(
            "--autocast --batch-size 2 --sequence-length 8 --layers 1 --width 16 "
            "--heads 2 --vocabulary 50"
        ),
    ),
    "workers": Program(
        "train_workers.py",
        _arguments("--batch-size 8 --workers 2 --epoch 5"),
        _arguments(f"--workers 1 --epoch 3 {_TINY_RESNET} --batch-size 4"),
    ),
}
# Whose steps are all alike; the others differ in them, in threads or in models.
FIXED = ("resnet50", "gpt2", "googlenet", "infer")


@dataclass(frozen=True)
class Allocator:
    """What serves a run: torch's default, a plan, or a library preloaded."""

    name: str
    preload: Path | None = None
    planned: bool = False
    options: tuple[str, ...] = ()  # of `memplan apply`


DEFAULT = Allocator("default")
MEMPLAN = Allocator("memplan", planned=True)
WITH_MALLOC = Allocator("+malloc", planned=True, options=("--malloc",))

OTHERS = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}


def find_library(name: str, folders: Sequence[Path] = LIBRARY_FOLDERS) -> Path | None:
    """The first of `folders` that holds the library, as a path to it."""
    return next((path for f in folders if (path := f / name).is_file()), None)
