"""Change random places of memplan one at a time, and see whether the tests notice.

    python scripts/mutate.py --seed 1 --count 60

Each mutant is one change of one expression or statement. The tests that mirror its room
run in a copy of the source tree, and stop at the first failure: then the mutant is
killed. Rooms take turns. Prints a Markdown table; ends with 1 where fewer than 90 %
were killed.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from memplan.native import _dsa

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "memplan"
# In the copy's root, which is first on the path of every process that a test starts: an
# editable install would otherwise import the package from the original tree.
PATH = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "build", "docs", "traces.*", "__pycache__", ".*_cache", "dist"
)
PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.FloorDiv),
    (ast.And, ast.Or),
)
FLIPPED = dict(PAIRS) | {second: first for first, second in PAIRS}


def changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Nodes of functions' bodies, each with what may stand in its place."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (n for part in function.body for n in ast.walk(part)):
            if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED:
                ops = [FLIPPED[type(node.ops[0])](), *node.ops[1:]]
                yield node, ast.Compare(node.left, ops, node.comparators)
            elif isinstance(node, ast.BinOp) and type(node.op) in FLIPPED:
                text = isinstance(node.left, ast.JoinedStr | ast.Constant)
                if not text or not isinstance(node.left.value, str):  # type: ignore[union-attr]
                    op = FLIPPED[type(node.op)]()
                    yield node, ast.BinOp(node.left, op, node.right)  # type: ignore[arg-type]
            elif isinstance(node, ast.BoolOp):
                yield node, ast.BoolOp(FLIPPED[type(node.op)](), node.values)  # type: ignore[arg-type]
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                yield node, node.operand
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                yield node, ast.Constant(node.value + 1)
            elif isinstance(node, ast.Constant) and type(node.value) is bool:
                yield node, ast.Constant(not node.value)
            elif isinstance(node, ast.AugAssign) or (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
            ):
                yield node, ast.Pass()
            elif isinstance(node, ast.If) and not node.orelse:
                yield node.test, ast.Constant(False)


def mutated(path: Path, chance: random.Random) -> tuple[str, int, str] | None:
    """A file's text with one change, its line, and the change; None without a place."""
    text = path.read_text(encoding="utf-8")
    found = [
        (old, new)
        for old, new in changes(ast.parse(text))
        if old.lineno == old.end_lineno
    ]
    if not found:
        return None
    old, new = chance.choice(found)
    lines = text.encode().splitlines(keepends=True)
    line = lines[old.lineno - 1]
    before = line[old.col_offset : old.end_col_offset].decode()
    after = ast.unparse(ast.fix_missing_locations(new))  # type: ignore[type-var]
    if isinstance(old, ast.expr):
        after = f"({after})"
    changed = line[: old.col_offset] + after.encode() + line[old.end_col_offset :]
    lines[old.lineno - 1] = changed
    return b"".join(lines).decode(), old.lineno, f"`{before}` → `{after}`"


def tests_of(room: str, extra: list[str]) -> list[str]:
    """The folder of tests that mirrors a room, or all root tests, and `extra`."""
    mirror = ROOT / "tests" / room
    own = [mirror] if mirror.is_dir() else sorted(ROOT.glob("tests/test_*.py"))
    return [str(path.relative_to(ROOT)) for path in own] + extra


def survives(copy: Path, tests: list[str], timeout: float) -> bool:
    """Whether all tests pass in the copy; a test that hangs has noticed the change."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        done = subprocess.run(
            [*words, "-m", "not soak", *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        sys.exit(
            f"pytest ended with {done.returncode}:\n{done.stdout.decode()[-2000:]}"
        )
    return done.returncode == 0


def main() -> None:
    """Make the mutants, and print what became of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--rooms", nargs="+", help="only these")
    parser.add_argument("--tests", nargs="+", default=[], help="to run as well")
    parser.add_argument("--timeout", type=float, default=1800.0, help="s per mutant")
    args = parser.parse_args()
    chance = random.Random(args.seed)
    rooms: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        rooms.setdefault(path.relative_to(PACKAGE).parts[0], []).append(path)
    names = args.rooms or sorted(name for name in rooms if not name.endswith(".py"))
    killed, done = 0, 0
    print("| place | change | outcome |\n| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "memplan"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
        (copy / "sitecustomize.py").write_text(PATH, encoding="utf-8")
        for library in Path(_dsa.__file__).parent.glob("*.so"):
            shutil.copy2(library, copy / "memplan" / "native")
        while done < args.count:
            room = names[done % len(names)]
            path = chance.choice(rooms[room])
            mutant = mutated(path, chance)
            if mutant is None:
                continue
            text, line, change = mutant
            target = copy / path.relative_to(ROOT)
            target.write_text(text, encoding="utf-8")
            lives = survives(copy, tests_of(room, args.tests), args.timeout)
            shutil.copy2(path, target)
            killed, done = killed + (not lives), done + 1
            outcome = "survived" if lives else "killed"
            place = f"{path.relative_to(ROOT)}:{line}"
            print(f"| {place} | {change} | {outcome} |", flush=True)
    print(f"\n{killed} of {done} killed")
    sys.exit(killed < 0.9 * done)


if __name__ == "__main__":
    main()
