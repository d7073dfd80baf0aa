"""What tests of compiled modules share.

Not in a file of tests: one that another imports runs twice, and to define an operator
again takes the first definition from torch.
"""

from __future__ import annotations

from typing import Any

from torch import nn

import memplan

SLOW = memplan.CompileOptions(max_slowdown=1000.0)


def compiled(model: nn.Module, inputs: Any, **given: Any) -> Any:
    found = memplan.compile(model, inputs, **{"options": SLOW, **given})
    assert found.memplan.status == "compiled", found.memplan.reason
    return found
