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
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from memplan.native import _dsa

ROOT = Path(__file__).resolve().parents[1]
# In the copy's root, which is first on the path of every process that a test starts: an
# editable install would otherwise import the package from the original tree.
PATH = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", "build", "traces.*", "__pycache__", ".*_cache", "dist"
)
TIMEOUT = "timeout"
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
                text = isinstance(node.left, ast.JoinedStr) or (
                    isinstance(node.left, ast.Constant)
                    and isinstance(node.left.value, str)
                )
                if not text:
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


def tests_of(copy: Path, place: Path, extra: list[str]) -> list[list[str]]:
    """The tests that mirror the room of a module, or all root tests, and `extra`.

    First those that name the module, which notice a change soonest; then the others.
    """
    room, *rest = place.with_suffix("").parts[1:]
    mirror = copy / "tests" / room
    own = mirror.rglob("test_*.py") if mirror.is_dir() else copy.glob("tests/test_*.py")
    near: list[str] = []
    far: list[str] = []
    for test in sorted(own):
        names_it = ".".join((room, *rest)) in test.read_text(encoding="utf-8")
        (near if names_it else far).append(str(test.relative_to(copy)))
    return [tests for tests in (near, far + extra) if tests]


def failure(copy: Path, tests: list[str], timeout: float) -> str:
    """The first test that fails in the copy, "" where all pass; TIMEOUT where they
    are not done by then."""
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
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TIMEOUT
    if done.returncode in (0, 5):  # 5: all of them are soak tests
        return ""
    if done.returncode not in (1, 2):
        sys.exit(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}")
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit code {done.returncode}"


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
    killed = open_ = done = 0
    print("| place | change | outcome |\n| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "memplan"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED, symlinks=True)
        (copy.parent / "shared").symlink_to(ROOT.parent / "shared")
        (copy / "sitecustomize.py").write_text(PATH, encoding="utf-8")
        rooms: dict[str, list[Path]] = {}
        for path in sorted((copy / "memplan").rglob("*.py")):
            rooms.setdefault(path.relative_to(copy).parts[1], []).append(path)
        # Of native there is only C++ to change.
        names = args.rooms or sorted(
            name for name in rooms if not name.endswith(".py") and name != "native"
        )
        for library in Path(_dsa.__file__).parent.glob("*.so"):
            shutil.copy2(library, copy / "memplan" / "native")
        while done < args.count:
            room = names[done % len(names)]
            path = chance.choice(rooms[room])
            mutant = mutated(path, chance)
            if mutant is None:
                continue
            text, line, change = mutant
            place, before = path.relative_to(copy), path.read_text(encoding="utf-8")
            path.write_text(text, encoding="utf-8")
            groups = tests_of(copy, place, args.tests)
            found = (failure(copy, tests, args.timeout) for tests in groups)
            killer = next(filter(None, found), "")
            path.write_text(before, encoding="utf-8")
            if killer.startswith("tests") and failure(copy, [killer], args.timeout):
                sys.exit(f"{killer} fails without a change, too")
            done += 1
            if killer == TIMEOUT:  # a test that hangs, or a machine that is busy
                outcome, open_ = f"open after {args.timeout:g} s", open_ + 1
            elif killer:
                outcome, killed = f"killed by {killer}", killed + 1
            else:
                outcome = "survived"
            print(f"| {place}:{line} | {change} | {outcome} |", flush=True)
    print(f"\n{killed} of {done} killed, {open_} open")
    sys.exit(killed < 0.9 * done)


if __name__ == "__main__":
    main()
