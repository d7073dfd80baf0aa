"""What every example program takes, and how it begins."""

from __future__ import annotations

import argparse

import torch


def program_arguments(
    description: str, *, batch_size: int, steps: int
) -> argparse.ArgumentParser:
    """A parser of what every program takes, with these defaults."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="default: PyTorch's choice")
    return parser


def prepare(args: argparse.Namespace) -> None:
    """Set the threads and the seed, before a model is made."""
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
