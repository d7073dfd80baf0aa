"""One way to run a network, and the kernels that are tried after others."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.fusing.engine.build import Engine


@dataclass
class Trial:
    """An engine, or None; how its results differ; seconds of its fastest run so far;
    kernels that it was the best of. bytes: of the engine that takes least, where all
    take too many."""

    engine: Engine | None
    error: float
    seconds: float = float("inf")
    kernels: tuple[str, ...] = ()
    bytes: int = 0


def ever_more_exact(kernels: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Sets of kernels, each without the coarsest of the one before."""
    found = [kernels]
    for name in ("winograd4", "winograd2"):
        rest = tuple(each for each in found[-1] if each != name)
        if rest and rest != found[-1]:
            found.append(rest)
    return found


def used(engine: Engine, kernels: tuple[str, ...]) -> tuple[str, ...]:
    """Of the kernels allowed, those that the engine's choice was made among."""
    used = set(engine.kernels.values())
    return tuple(
        each for each in kernels if each in used or not each.startswith("winograd")
    )
