"""What docs/hierarchies.md shows can be read."""

from __future__ import annotations

import re
from pathlib import Path

from memplan.blocking.machine.hierarchy import load_hierarchy
from tests.conftest import ROOT


def test_the_examples_are_hierarchies(tmp_path: Path) -> None:
    text = (ROOT / "docs/hierarchies.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    names = []
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example, encoding="utf-8")
        names += [level.name for level in load_hierarchy(str(path)).levels]
    alone = ["registers", "SRAM", "shift registers", "SRAM", "buffer"]
    assert names == ["local", "global", *alone, "near", "far"]
