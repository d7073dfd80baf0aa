"""Whether objects hold what they held."""

import torch

def holds(rows: list[tuple[dict[str, object], str, object]]) -> bool:
    """Whether each dictionary has, by its row's key, the row's value or an equal one.

    What raises RuntimeError, ValueError or TypeError when it is compared is not equal.
    Wrong rows raise TypeError.
    """

def holds_tensors(
    rows: list[tuple[dict[str, torch.Tensor], str, torch.Tensor, int, int]],
) -> bool:
    """Whether each dictionary has, by its row's key, the row's tensor itself, and that
    has the version and the address in the row."""

def has_lengths(rows: list[tuple[dict[str, object], int]]) -> bool:
    """Whether each dictionary has as many keys as its row says."""

def has_bytes(rows: list[tuple[int, bytes]]) -> bool:
    """Whether each address holds its row's bytes. What is there must be readable."""
