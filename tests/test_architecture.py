"""The house keeps its shape: who may import whom, and what start-up may cost."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import memplan

PACKAGE = Path(memplan.__file__).parent

# What each room may import of memplan, besides itself. The data flows one way:
# a recording becomes a trace, a trace a problem, a problem a plan, which is applied.
# Chunking, fusing and blocking are wings beside that corridor: they never import each
# other; what they share lies in graph and toolchain.
GROUND: dict[str, set[str]] = {
    "version": set(),
    "text": set(),
    "errors": {"text"},
    "limits": set(),
    "units": {"errors"},
    "arrays": {"errors", "limits"},
    "levels": {"arrays"},
    "streams": {"errors"},
    "files": {"errors", "limits", "streams"},
    "scratch": {"errors"},
    "factory": {"errors"},
    "cores": set(),
    "garbage": set(),
    "sweep": {"errors", "cores"},
}
BASE = set(GROUND) | {"formats"}
CORRIDOR = BASE | {"core", "trace", "native"}
ROOMS: dict[str, set[str]] = {
    **GROUND,
    "native": set(),
    "formats": set(GROUND),
    "core": BASE | {"native"},  # the checker's sweep
    "trace": BASE | {"core", "native"},  # the reader of pickles
    "recording": CORRIDOR,
    "solving": CORRIDOR,
    "budgeting": CORRIDOR | {"solving"},
    "applying": CORRIDOR | {"recording", "solving"},
    "reporting": CORRIDOR | {"recording", "solving", "applying"},
    "plotting": BASE | {"core", "trace", "blocking"},
    # Lives are a Problem; the allocator serves a tape's requests.
    "graph": BASE | {"core", "native"},
    "toolchain": set(GROUND),
    "chunking": BASE | {"graph"},
    "fusing": BASE | {"graph", "toolchain", "native"},
    # The allocator's shim is installed as for a recording.
    "compiling": BASE | {"core", "solving", "graph", "chunking", "fusing", "recording"},
    "blocking": BASE | {"native", "toolchain", "graph"},
    "cli": CORRIDOR
    | {"recording", "solving", "budgeting", "applying", "reporting", "plotting"}
    | {"chunking", "fusing", "compiling", "blocking"},
    "__main__": {"cli"},
}

# The rooms of blocking, likewise: nests, the machines they run on, what that costs, the
# search for the best, designs made of searches; nests made to run stand beside.
BLOCKING: dict[str, set[str]] = {
    "__init__": set(),
    "nest": set(),
    "machine": {"nest"},
    "cost": {"nest", "machine"},
    "plan": {"nest", "cost"},
    "planfile": {"nest", "cost", "plan"},
    "search": {"nest", "machine", "cost"},
    "design": {"nest", "machine", "cost", "plan", "search"},
    "run": {"nest", "machine", "cost"},
}

# Rooms whose modules load only when a verb runs, and may import torch at their top:
# `test_starting_up_loads_nothing_heavy` and the commands' --help see that none loads
# before.
LATE = {"graph", "chunking", "fusing", "compiling"}

# Where each third-party package may be imported at all.
HOMES = {
    "click": {"cli"},
    "rich": {"cli"},
    "torch": {
        "recording",
        "applying",
        "graph",
        "chunking",
        "fusing",
        "compiling",
        "blocking",
    },
    "matplotlib": {"plotting"},
    "jinja2": {"reporting"},
    "markupsafe": {"reporting"},
    "onnx": {"blocking/run/onnx_models.py"},
    "pandas": {"trace", "reporting"},
    "pyarrow": {"trace", "reporting", "core/planparquet.py"},
    "pulp": {"solving/cbc.py"},
    "numpy": set(ROOMS) - (set(GROUND) - {"arrays", "levels"}) - {"__main__"},
}


def sources() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" or path.parent != PACKAGE
    )


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Absolute module names imported in a file, the line, and whether at its top."""
    tree = parsed(path)
    top = {id(node) for node in tree.body}
    typing_only = {
        id(inner)
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno, id(node) in top


def parts_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(PACKAGE).with_suffix("").parts


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    room, here, *_ = *parts_of(path), ""
    wrong = []
    for name, line, at_top in imports(path):
        head, _, rest = name.partition(".")
        if head == "memplan":
            other, inner, *_ = [*rest.split("."), "", ""]
            if other == room == "blocking":
                fits = inner in {here, *BLOCKING[here]}
            else:
                fits = other in {room, *ROOMS[room]}
            if not fits:
                wrong.append(f"{path}:{line}: {room} imports {name}")
        elif head in HOMES:
            if not {room, str(path.relative_to(PACKAGE))} & HOMES[head]:
                wrong.append(f"{path}:{line}: {name} in {room}")
            if head == "torch" and at_top and room not in LATE:
                wrong.append(f"{path}:{line}: torch is imported where it is used")
    assert not wrong


def module_of(path: Path) -> str:
    dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


@functools.cache
def graph() -> dict[str, set[str]]:
    """Of every module of memplan, those it imports, inside functions too. A name that
    no module has is its package's: `memplan.solve` is in `memplan`."""
    files = {module_of(path): path for path in sources()}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        found[module] = set()
        for name, _, _ in imports(path):
            other = name
            while other not in files and "." in other:
                other = other.rpartition(".")[0]
            if other in files or other == "memplan":
                found[module].add(other)
    return found


def test_nothing_imports_the_package_face() -> None:
    assert not [module for module, others in graph().items() if "memplan" in others]


@pytest.mark.parametrize("depth", [2, 3, 9], ids=["rooms", "rooms in rooms", "files"])
def test_no_imports_run_in_a_circle(depth: int) -> None:
    def cut(module: str) -> str:
        return ".".join(module.split(".")[:depth])

    folded: dict[str, set[str]] = {}
    for module, others in graph().items():
        folded.setdefault(cut(module), set()).update(map(cut, others))
    for name, others in folded.items():
        others.discard(name)
    TopologicalSorter(folded).prepare()  # raises CycleError, which names the circle


def test_no_file_has_two_jobs() -> None:
    long = {
        str(path.relative_to(PACKAGE)): count
        for path in sources()
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 540
    }
    assert not long


def opened_for_writing(path: Path) -> Iterator[int]:
    """The lines of a file that open, make or move a file otherwise than to read it."""
    names = {"write_text", "write_bytes", "touch", "mkstemp", "fdopen"}
    names |= {"NamedTemporaryFile", "TemporaryFile", "tofile", "savetxt"}
    for node in ast.walk(parsed(path)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        home, _, name = called.rpartition(".")
        if called in ("os.open", "os.replace", "os.rename", "shutil.move"):
            yield node.lineno
        elif name == "open":
            at = 0 if isinstance(node.func, ast.Attribute) else 1  # Path's, or built in
            modes = [k.value for k in node.keywords if k.arg == "mode"]
            modes += node.args[at : at + 1]
            if any(not is_reading(mode) for mode in modes):
                yield node.lineno
        elif home and name in names:
            yield node.lineno


def is_reading(mode: ast.expr) -> bool:
    return isinstance(mode, ast.Constant) and set(str(mode.value)) <= set("rbt")


def test_files_alone_opens_files_for_writing() -> None:
    assert list(opened_for_writing(PACKAGE / "files.py"))
    # Standard streams, and the null device in place of them, are no files.
    allowed = {PACKAGE / "files.py", PACKAGE / "streams.py"}
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in sources()
        if path not in allowed and (lines := list(opened_for_writing(path)))
    }
    assert not found


HEAVY = (
    *("torch", "pandas", "pyarrow", "matplotlib", "pulp", "numpy", "rich", "jinja2"),
    *("difflib", "html", "click.shell_completion"),  # for what few commands do
)


@pytest.mark.parametrize(
    "code",
    [
        "import memplan",
        "import memplan.cli",
        "import sys; sys.argv = ['memplan', '--help']; import memplan.cli as c;"
        "\ntry: c.main()\nexcept SystemExit: pass",
        "import sys; sys.argv = ['memplan', '--version']; import memplan.cli as c;"
        "\ntry: c.main()\nexcept SystemExit: pass",
        "import sys; sys.argv = ['memplan', 'blocking', '--help'];"
        "\nimport memplan.cli as c\ntry: c.main()\nexcept SystemExit: pass"
        "\nassert 'memplan.blocking' not in sys.modules",
    ],
)
def test_starting_up_loads_nothing_heavy(code: str) -> None:
    check = f"{code}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", check],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("module", ["cli.chunk", "cli.fuse", "chunking.planfile"])
def test_only_the_verbs_load_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import memplan.{module}"
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)


def test_solving_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import memplan\n"
        "plan = memplan.solve(([0, 1], [2, 3], [64, 64]))\n"
        "assert plan.peak == 128 and memplan.verify(plan) == []\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)


def test_every_public_name_is_there_and_listed() -> None:
    for name in memplan.__all__:
        assert getattr(memplan, name) is not None
    assert set(dir(memplan)) == set(memplan.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        memplan.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_no_room_has_the_name_of_a_public_verb() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not rooms & set(memplan.__all__)
