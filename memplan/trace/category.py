"""What a buffer holds."""

from __future__ import annotations

import enum


class Category(enum.IntEnum):
    """What a buffer holds; the value is its code in `Action.LABEL` events.

    PARAMETERS: of a module, its buffers too. ACTIVATIONS: results of a forward pass.
    INPUTS: what was given to the outermost module, and made outside of one.
    TEMPORARIES: scratch, what a backward pass or an optimizer makes and drops.
    """

    UNKNOWN = 0
    PARAMETERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    INPUTS = 5
    TEMPORARIES = 6

    @property
    def label(self) -> str:
        """As people read it: "optimizer state"."""
        return self.name.lower().replace("_", " ")
