"""What a training step computes again in its backward pass, so that it fits a budget.

A *unit* is a module, or a run of the children of a `torch.nn.Sequential`. Autograd
keeps none of the tensors that a unit's forward call saves; the call is made again when
the backward pass first needs one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from memplan.formats.table import Table


@dataclass(frozen=True)
class Root:
    """An outermost module: its class, and a hash (hex) of its modules' names, classes
    and the shapes of their parameters."""

    kind: str
    fingerprint: str


@dataclass(frozen=True)
class Unit:
    """One unit of a Recomputation.

    root: index into `roots`. path: of the module in its root. first, last: of a run,
    the children [first, last) of the `torch.nn.Sequential` at `path`; both 0 for a
    module. kind: class name. written: buffers that its forward changes, and tensors
    among attributes that it replaces, by their paths in the unit's module.
    """

    root: int
    path: str
    first: int
    last: int
    kind: str
    written: tuple[str, ...]

    @property
    def name(self) -> str:
        """As people read it: "blocks.3", "layer1.0 to layer1.2"."""
        if not self.last:
            return self.path
        at = f"{self.path}." if self.path else ""
        return f"{at}{self.first} to {at}{self.last - 1}"

    def crosses(self, other: Unit) -> bool:
        """Whether they are runs that share children, and neither lies in the other."""
        if (self.root, self.path) != (other.root, other.path):
            return False
        before, after = sorted([(self.first, self.last), (other.first, other.last)])
        return before[0] < after[0] < before[1] < after[1]


@dataclass(frozen=True)
class Recomputation:
    """What is computed again, and what it was chosen for; bytes of live tensors.

    budget: the most that may be live. predicted: the peak that is expected; eager: the
    recorded one, with nothing computed again. recomputed_milli: thousandths of the
    step's forward time that is spent again, as the recording had it. proved: no choice
    of units of which none lies in another takes less of that time within the budget, by
    the model of `memplan.budgeting.program`.
    """

    budget: int
    predicted: int
    eager: int
    recomputed_milli: int
    proved: bool
    roots: tuple[Root, ...]
    units: tuple[Unit, ...]


KEYS = frozenset(each.name for each in fields(Recomputation))


def recomputation_from(table: Table) -> Recomputation:
    """The Recomputation in a plan file. Raises FormatError naming the field."""
    found = table.build(Recomputation)
    for i, unit in enumerate(found.units):
        at = f"units[{i}]"
        if unit.root >= len(found.roots):
            raise table.error(f"{at}.root", f"is {unit.root}: there is no such root")
        if (unit.first or unit.last) and not unit.first < unit.last:
            raise table.error(f"{at}.last", "must be greater than first")
        for other in found.units[:i]:
            if other == unit:
                raise table.error(at, f"is {unit.name}, as a unit before it")
            if unit.crosses(other):
                raise table.error(at, f"is {unit.name}, and crosses {other.name}")
    return found
