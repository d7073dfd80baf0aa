"""How a datapath was chosen, as plan files and JSON have it."""

from __future__ import annotations

from memplan.blocking.nest.array import Array, MappingSearch
from memplan.errors import UsageError
from memplan.formats.table import Table

_KEYS = frozenset({"complete", "mappings", "pruned", "searched", "sides"})


def mapping_entry(found: MappingSearch | None) -> dict[str, object] | None:
    """As `read_mapping` takes it."""
    if found is None:
        return None
    return {
        "complete": found.complete,
        "mappings": found.mappings,
        "pruned": found.pruned,
        "searched": found.searched,
        "sides": list(found.array.sides),
    }


def read_mapping(file: Table) -> MappingSearch:
    """What `mapping` says. Raises FormatError where it cannot be."""
    table = file.table("mapping", _KEYS)
    given = table.rows("sides")
    sides = table.integers(given, lambda i: f"sides[{i}]", 1).tolist()
    try:
        array = Array(tuple(sides))
    except UsageError as error:
        raise table.error("sides", f"cannot be: {error}") from None
    found = MappingSearch(
        array,
        table.integer("mappings", 1),
        table.integer("pruned"),
        table.integer("searched", 1),
        table.flag("complete"),
    )
    if found.open < 0:
        raise table.error("mappings", "are fewer than were pruned and searched")
    return found
