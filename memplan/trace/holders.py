"""What holds buffers: variables of the program, and cycles of its objects."""

from __future__ import annotations

from dataclasses import dataclass

GRAPH_OF = "graph of "


@dataclass(frozen=True)
class Holder:
    """A variable of the program, and the way from it to tensors.

    name: as the program would write it, `model.cache[*]`, with [*] for any index; with
    "graph of", tensors that autograd has saved for a backward pass of it; "uncollected
    cycle" of objects that no variable reaches. place: whose variable it is, "global of
    train.py", or the line that closes the cycle. filled: the lines that add to it or
    make it anew of itself, "train.py:12", at most three.
    """

    name: str
    place: str = ""
    filled: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """Its name without "graph of"."""
        return self.name.removeprefix(GRAPH_OF)

    @property
    def text(self) -> str:
        """In a line: "history[*] (global of train.py), filled at train.py:12"."""
        place = f" ({self.place})" if self.place else ""
        filled = f", filled at {', '.join(self.filled)}" if self.filled else ""
        return f"{self.name}{place}{filled}"


@dataclass(frozen=True)
class Held(Holder):
    """A holder, and the addresses of the storages that it holds."""

    addresses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Collection:
    """A run of Python's cycle collector that freed something.

    begin_ns, end_ns: half-open, on the clock of the trace's events. thread: that ran
    it, the operating system's id: what this thread freed meanwhile was in a cycle, or
    held by one. cycle: one that held tensors, as "Node.children[*].parent", and place:
    the line that closes it, "tree.py:14"; "" where that is not known.
    """

    begin_ns: int
    end_ns: int
    thread: int = 0
    cycle: str = ""
    place: str = ""
