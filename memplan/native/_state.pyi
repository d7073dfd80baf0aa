"""Whether objects hold what they held."""

import torch

def holds(rows: list[tuple[dict[str, object], str, object]]) -> bool:
    """Whether each dictionary has, by its row's key, the row's value or an equal one of
    the same type.

    What raises RuntimeError, ValueError or TypeError when it is compared is not equal.
    Wrong rows raise TypeError.
    """

Group = dict[str, torch.Tensor]
Row = tuple[Group, str, torch.Tensor, int, int, torch.Size, tuple[int, ...] | None]

def holds_tensors(rows: list[Row]) -> bool:
    """Whether each dictionary has, by its row's key, the row's tensor itself, and that
    has the version, address, shape and strides in the row; None stands for any
    strides."""

def has_keys(rows: list[tuple[dict[str, object], tuple[str, ...]]]) -> bool:
    """Whether each dictionary has its row's keys, in their order."""

def versions(groups: list[dict[str, object]]) -> bytes:
    """Counts of the dictionaries' changes, for `has_versions`."""

def has_versions(groups: list[dict[str, object]], then: bytes) -> bool:
    """Whether none of the dictionaries has changed since `versions` was asked; False if
    that is not known, as from Python 3.13 on.

    Counts of another number of dictionaries raise ValueError.
    """

def has_bytes(rows: list[tuple[int, bytes]]) -> bool:
    """Whether each address holds its row's bytes. What is there must be readable."""
