"""Which line, module and operator asked, and what blocks hold, as recorded."""

from __future__ import annotations

import collections
import re
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import memplan  # noqa: E402
from memplan.recording import events  # noqa: E402
from memplan.recording.sites import operator_at  # noqa: E402
from memplan.reporting.live import live_at  # noqa: E402
from memplan.reporting.stats import summarize  # noqa: E402
from memplan.trace.lives import lives_of  # noqa: E402
from memplan.trace.stacks import Phase  # noqa: E402
from memplan.trace.trace import (  # noqa: E402
    Action,
    Category,
    Trace,
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        hidden = functional.gelu(self.first(x))
        return x + self.second(hidden)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(model: Any, optimizer: Any, steps: int = 4) -> None:
    for _ in range(steps):
        x, labels = torch.randn(16, 32), torch.randint(0, 8, (16,))
        loss = functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def recorded(tmp_path: Path, program: Any, stacks: Any = "site") -> Trace:
    path = tmp_path / "t.parquet"
    with memplan.record(path, device="cpu", steps="all", stacks=stacks, force=True):
        program()
    return memplan.read_trace(path)


def whole() -> None:
    model = Net()
    train(model, torch.optim.AdamW(model.parameters(), foreach=False))


def test_categories_are_the_bytes_of_what_they_name(tmp_path: Path) -> None:
    weights = sum(p.numel() * 4 for p in Net().parameters())
    stats = summarize(recorded(tmp_path, whole))
    found = stats.peak.categories
    assert found[Category.PARAMETERS] == weights
    assert found[Category.GRADIENTS] == weights
    counters = 4 * len(list(Net().parameters()))  # AdamW's, of steps
    assert found[Category.OPTIMIZER_STATE] == 2 * weights + counters
    assert found[Category.ACTIVATIONS] > 0
    assert found[Category.INPUTS] >= 16 * 32 * 4
    assert found[Category.UNKNOWN] == 0
    assert sum(found.values()) == stats.peak.bytes


def test_sites_name_module_and_operator(tmp_path: Path) -> None:
    buffers = lives_of(recorded(tmp_path, whole))
    known = {(site.module, site.operator, site.function) for site in buffers.sites}
    assert ("blocks.0.first", "linear", "forward") in known
    assert ("blocks.1", "gelu", "forward") in known
    assert ("blocks.1", "add", "forward") in known
    assert ("blocks.0.second", "AddmmBackward0", "forward") in known
    assert ("", "cross_entropy_loss", "train") in known
    state = [s for s in buffers.sites if s.operator == "zeros_like"]
    assert {site.module for site in state} >= {"blocks.0.first", "head"}
    ours = {site.file for site in buffers.sites if site.file}
    assert ours == {__file__}


class Counter(TorchDispatchMode):
    """Bytes live at the peak by line, by what operators return and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, tuple[str, int]]] = {}
        self.total = self.peak = 0
        self.at: collections.Counter[tuple[str, int]] = collections.Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor):
                self.take(tensor.untyped_storage())
        return out

    def take(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or not size:
            return
        self.live[key] = size, line_of_user()
        weakref.finalize(storage, self.free, key)
        self.total += size
        if self.total > self.peak:
            self.peak, self.at = self.total, collections.Counter()
            for bytes_, line in self.live.values():
                self.at[line] += bytes_

    def free(self, key: int) -> None:
        self.total -= self.live.pop(key)[0]


def line_of_user() -> tuple[str, int]:
    """Of a backward pass, the forward pass's, as anomaly detection knows it."""
    node = torch._C._current_autograd_node()
    if node is not None:
        for text in reversed(node.metadata["traceback_"]):
            match = re.match(r'\s*File "(.*)", line (\d+), in (forward|train)', text)
            if match and match[1] == __file__:
                return match[1], int(match[2])
    frame: Any = sys._getframe(3)
    while "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_every_line_has_the_bytes_that_an_independent_counter_finds(
    tmp_path: Path,
) -> None:
    counter = Counter()
    with counter, torch.autograd.set_detect_anomaly(True, check_nan=False):
        whole()
    live = live_at(lives_of(recorded(tmp_path, whole)))
    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for site, size in live.sites().items():
        found[site.file, site.line] += size
    assert live.bytes == counter.peak
    assert found == counter.at


def test_what_a_checkpoint_computes_again_is_its_forward_pass(tmp_path: Path) -> None:
    model = Block()

    def program() -> None:
        x = torch.randn(16, 32, requires_grad=True)
        for _ in range(3):
            checkpoint(model, x, use_reentrant=False).sum().backward()

    trace = recorded(tmp_path, program)
    phases = [
        trace.stacks.origin(int(i)).phase
        for i in trace.events.stack[trace.events.action == Action.ALLOC]
    ]
    forward = [
        (trace.stacks.origin(i).operator, trace.stacks[i][0].name)
        for i in range(len(trace.stacks))
        if trace.stacks.origin(i).phase is Phase.FORWARD
    ]
    assert ("gelu", "forward") in forward
    assert phases.count(Phase.FORWARD) >= 6 * 3  # twice each step


def test_modules_that_are_called_again_keep_their_names(tmp_path: Path) -> None:
    class Checkpointed(Net):
        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    def program() -> None:
        model = Checkpointed()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))

    found = {each.module for each in lives_of(recorded(tmp_path, program)).sites}
    names = {f"blocks.{i}.{name}" for i in (0, 1) for name in ("first", "second")}
    assert names <= found
    assert not found & {"first", "second", "Block"}


def test_a_request_that_fails_is_kept(tmp_path: Path) -> None:
    def program() -> None:
        kept = torch.empty(1000)
        with pytest.raises(RuntimeError):
            torch.empty(1 << 58)
        del kept

    stats = summarize(recorded(tmp_path, program))
    assert stats.oom is not None
    assert (stats.oom.requested_bytes, stats.oom.live.bytes) == (1 << 60, 4000)
    assert stats.oom.site.function == "program"
    assert stats.oom.site.operator == "empty"
    assert stats.peak.bytes == 4000


def test_without_stacks_nothing_is_noted(tmp_path: Path) -> None:
    trace = recorded(tmp_path, whole, stacks="none")
    assert len(trace.stacks) == 0
    assert not (trace.events.action == Action.LABEL).any()
    assert not summarize(trace).has_sites


def test_whole_stacks_have_the_same_sites(tmp_path: Path) -> None:
    short = live_at(lives_of(recorded(tmp_path, whole)))
    long = recorded(tmp_path, whole, stacks="python")
    assert max(len(stack) for stack in long.stacks) > 3
    assert live_at(lives_of(long)).by("line")[0].bytes == short.by("line")[0].bytes


class Called(nn.Linear):
    """With a call of its own, as some libraries' modules have."""

    def __call__(self, x: Any) -> Any:
        return super().__call__(x)


def test_modules_are_seen_without_hooks(tmp_path: Path) -> None:
    seen: list[int] = []
    model = nn.Sequential(nn.Sequential(Called(16, 8), nn.ReLU()))
    hooks = nn.modules.module
    before = [*hooks._global_forward_hooks, *hooks._global_forward_pre_hooks]

    def program() -> None:
        seen.append(
            len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks)
        )
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 99))  # what fails is left, too
        outside.append(torch.empty(64))
        model(torch.randn(4, 16))

    outside: list[Any] = []
    buffers = lives_of(recorded(tmp_path, program))
    assert seen == [len(before)]
    known = {(site.module, site.operator) for site in buffers.sites}
    assert ("0.0", "linear") in known
    assert ("0.1", "relu") in known
    assert ("", "empty") in known
    # Nothing of it is left behind.
    assert model(torch.randn(4, 16)).shape == (4, 8)


class Strict(TorchFunctionMode):
    """Takes note of all that it is told of, and knows of few functions."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func.__name__)
        if func is not functional.linear:
            raise TypeError(f"no such function: {func.__name__}")
        return func(*args, **(kwargs or {}))


def test_a_programs_modes_are_not_told(tmp_path: Path) -> None:
    model, x, seen = nn.Linear(16, 8), torch.randn(4, 16), []

    def program() -> None:
        for given in (x, x, nn.Parameter(x)):
            with Strict(seen):
                model(given)

    recorded(tmp_path, program)
    assert seen == ["linear"] * 3


class Named(nn.Module):
    """What it holds has names that modules' own methods have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 8)
        self.buffers: list[Any] = []  # type: ignore[assignment]

    def parameters(self, group: str) -> Any:  # type: ignore[override]
        raise ValueError(group)

    def named_modules(self) -> Any:  # type: ignore[override]
        raise ValueError

    def forward(self, x: Any) -> Any:
        self.buffers.append(self.inner(x))
        return self.buffers[-1]


def test_a_class_may_have_methods_of_its_own(tmp_path: Path) -> None:
    made = Named()

    def program() -> None:
        for _ in range(3):
            made(torch.randn(4, 16)).sum().backward()

    trace = recorded(tmp_path, program)
    held = {(each.module, each.operator) for each in lives_of(trace).sites}
    assert ("inner", "linear") in held
    assert trace.info.program.marks == "forward"
    labels = trace.events.requested_size[trace.events.action == Action.LABEL]
    assert {Category.PARAMETERS, Category.GRADIENTS} <= set(labels.tolist())


def test_weights_that_are_not_made_yet_are_no_matter(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))

    def program() -> None:
        for _ in range(2):
            model(torch.randn(4, 8))

    peak = summarize(recorded(tmp_path, program)).peak
    weights = sum(each.numel() for each in model.parameters())
    assert peak.categories[Category.PARAMETERS] == 4 * weights


def test_a_hooks_memory_belongs_to_its_module(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 8))
    model[0].register_forward_hook(lambda _, __, out: out.clone())
    buffers = lives_of(recorded(tmp_path, lambda: model(torch.randn(4, 16))))
    assert ("0", "clone") in {(site.module, site.operator) for site in buffers.sites}


def test_what_sites_take_is_told_where_it_is_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notes(share: float, stacks: Any, least: float = 0) -> str:
        monkeypatch.setattr(events, "NOTED_SHARE", share)
        monkeypatch.setattr(events, "NOTED_SECONDS", least)
        path = tmp_path / "t.parquet"
        with memplan.record(path, device="cpu", stacks=stacks, force=True) as recording:
            whole()
        return " ".join(recording.notes)

    said = notes(0.0, "site")
    assert re.search(r"added about \d+% to .*--stacks none turns it off", said)
    assert notes(0.0, "none") == ""
    assert notes(1e9, "site") == ""
    assert notes(0.0, "site", least=1e9) == ""


@pytest.mark.parametrize("stacks", ["site", "python"])
@pytest.mark.parametrize("folder", ["ab", "cd"])
def test_what_the_compiler_wrote_is_not_the_programs_own(
    folder: str, stacks: str, tmp_path: Path
) -> None:
    # As torch.compile names its files: by a hash, in the folder of its first digits.
    path = tmp_path / "cache" / folder / f"cab{'q2' * 24}7.py"
    path.parent.mkdir(parents=True)
    path.write_text("def call(torch):\n    return torch.empty(1000)\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)

    def program() -> None:
        space["call"](torch)

    (share,) = live_at(lives_of(recorded(tmp_path, program, stacks))).by("line")
    assert share.bytes == 4000
    assert share.site.file == (__file__ if folder == "ab" else str(path))
    assert share.site.function == ("program" if folder == "ab" else "call")


def test_weights_are_the_modules_that_has_them_now(tmp_path: Path) -> None:
    def program() -> None:
        for name in "abcdef":  # ids come again
            model = nn.Sequential(collections.OrderedDict({name: nn.Linear(10, 10)}))
            model(torch.zeros(1, 10))
            del model

    buffers = lives_of(recorded(tmp_path, program))
    weights = buffers.site[buffers.category == Category.PARAMETERS]
    found = [buffers.sites[i].module for i in weights]
    assert found == [name for name in "abcdef" for _ in ("weight", "bias")]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="columns of code are not known")
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a @ b", "matmul"),
        ("a[b]", "index"),
        ("-a", "neg"),
        ("a < b", "lt"),
        ("x.y.linear(a, b)", "linear"),
        ("conv(a)", "conv"),
    ],
)
def test_operators_are_told_from_the_code(
    source: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.py"
    path.write_text(f"def f(a, b, x, conv):\n    return {source}\n")
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    offsets = range(0, len(space["f"].__code__.co_code), 2)
    assert name in {operator_at(space["f"].__code__, offset) for offset in offsets}


def test_weights_that_a_call_replaces_are_left_alone(tmp_path: Path) -> None:
    model = Net()

    def program() -> None:  # a step of MAML; warnings are errors here
        for _ in range(3):
            weights = {name: p * 0.5 for name, p in model.named_parameters()}
            out = torch.func.functional_call(model, weights, (torch.randn(4, 32),))
            out.sum().backward()
            model.zero_grad()

    assert recorded(tmp_path, program).info.complete
