"""Recording without memory: what a program would ask for, and what cannot be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memplan as package
from memplan.cli import fit
from memplan.core.bounds import lower_bound
from memplan.recording.forking import ForkServer
from memplan.recording.target import Target
from memplan.recording.trial import Trial
from memplan.trace.liveness import step_problem
from memplan.trace.lives import Summary
from memplan.trace.read import read_trace
from memplan.trace.reserved import most_reserved, ran_out
from memplan.trace.trace import Trace
from tests.conftest import Run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

CONVOLUTIONS = """\
import torch
torch.set_num_threads(1)
net = torch.nn.Sequential(
    torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 48, 3, padding=1), torch.nn.BatchNorm2d(48),
    torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48 * 256, 10),
)
optimizer = torch.optim.AdamW(net.parameters())
for step in range(5):
    images = torch.randn(8, 32, 16, 16)
    loss = torch.nn.functional.cross_entropy(net(images), torch.arange(8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not torch.isfinite(loss):
        raise SystemExit("diverged")
    print(f"{loss:.3f}", loss.item())
"""

READING = """\
import random
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
net = torch.nn.Linear(8, 3).to(torch.bfloat16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
right, best = 0, 1e9
for epoch in range(2):
    for x, y in loader:
        out = net(x.to(torch.bfloat16))
        loss = torch.nn.functional.cross_entropy(out.float(), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        right += (out.argmax(1) == y).sum().item()
        best = min(best, float(loss))
        confident = out[out.abs() > 0.5]
    print(right / 64, best, out.detach().float().numpy().shape, out.tolist()[0])
torch.save(net.state_dict(), "checkpoint.pt")
print("done", torch.cuda.is_available())
"""

ON_GPU = """\
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512))
net.to(device)
optimizer = torch.optim.Adam(net.parameters())
assert next(net.parameters()).is_cuda and next(net.parameters()).device.index == 0
for step in range(4):
    x = torch.randn(256, 512).cuda(non_blocking=True)
    y = torch.zeros(256, 512, device=x.device)
    with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    print(loss.cpu().item(), torch.cuda.max_memory_allocated())
stats = torch.cuda.memory_stats()
assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved() > 0
assert stats.get("num_ooms", 0) == 0
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def recorded(memplan: Run, folder: Path, device: str, *options: str) -> Trace:
    done = memplan(
        "record", "--device", device, "-o", f"{device}.json", *options, "train.py"
    )
    assert done.returncode == 0, done.stderr
    return read_trace(folder / f"{device}.json")


def figures(trace: Trace) -> tuple[int, int]:
    """The peak of the whole run, and of what is transient in its hot step."""
    peak = Summary.of(trace.events).peak_live
    return peak, lower_bound(step_problem(trace).problem)


def test_a_training_needs_what_its_fake_recording_says(
    memplan: Run, training: Path, tmp_path: Path
) -> None:
    training.rename(tmp_path / "train.py")
    real = figures(recorded(memplan, tmp_path, "cpu"))
    assert figures(recorded(memplan, tmp_path, "fake", "-q")) == pytest.approx(
        real, rel=0.02
    )


@pytest.mark.soak
def test_convolutions_are_followed_into_their_workspaces(
    memplan: Run, tmp_path: Path
) -> None:
    script(tmp_path, CONVOLUTIONS)
    real = figures(recorded(memplan, tmp_path, "cpu"))
    fake = recorded(memplan, tmp_path, "fake", "--stacks", "python")
    assert figures(fake) == pytest.approx(real, rel=0.02)
    assert any(frame.filename.endswith("train.py") for frame in fake.stacks[0])
    assert "of fake tensors" in fake.info.producer


def test_values_that_are_not_there_are_stood_in_for_and_named(
    memplan: Run, tmp_path: Path
) -> None:
    script(tmp_path, READING)
    options = ("record", "--device", "fake", "--steps", "all", "-o", "t.json")
    done = memplan(*options, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done False\n")
    assert not (tmp_path / "checkpoint.pt").exists()
    assert "train.py:17, taken as 1" in done.stderr
    assert "train.py:19: a selection depends on values" in done.stderr
    assert "train.py:21: saved nothing" in done.stderr


def test_a_gpu_is_simulated_with_what_it_reserves(memplan: Run, tmp_path: Path) -> None:
    script(tmp_path, ON_GPU)
    trace = recorded(memplan, tmp_path, "fake:cuda")
    assert trace.info.device == "cuda"
    weights = 4 * (512 * 2048 * 2 + 2048 + 512)
    peak, reserved = Summary.of(trace.events).peak_live, most_reserved(trace.events)
    assert 4 * weights < peak <= reserved < 2 * peak
    assert reserved % (2 << 20) == 0
    assert (trace.events.size % 512 == 0).all()
    small = memplan("record", "--device", "fake:cuda:16MiB", "-o", "s.json", "train.py")
    assert small.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory (simulated)" in small.stderr
    assert ran_out(read_trace(tmp_path / "s.json").events)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            "from torch._subclasses.fake_tensor import FakeTensorMode\n"
            "mode = FakeTensorMode()\n",
            3,
            "uses FakeTensorMode itself",
        ),
        (
            "x = torch.rand(10000)\nn = (x > 0.5).sum().item()\ny = torch.zeros(n + 1)",
            4,
            "the size of a tensor depends on a value read at train.py:3",
        ),
        (
            "x = torch.rand(10000)\ny = torch.repeat_interleave(x, (x > 0.5).long())\n",
            3,
            "the shape of the result of repeat_interleave",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_with_its_line(
    memplan: Run, tmp_path: Path, text: str, line: int, reason: str
) -> None:
    script(tmp_path, f"import torch\n{text}\nprint('went on')\n")
    done = memplan("record", "--device", "fake", "-o", "t.json", "train.py")
    assert done.returncode == 125
    assert done.stdout == ""
    assert f"memplan: train.py:{line}" in done.stderr
    assert reason in done.stderr
    assert not (tmp_path / "t.json").exists()


def test_a_program_of_the_cpu_has_nothing_on_a_simulated_gpu(
    memplan: Run, training: Path
) -> None:
    done = memplan("record", "--device", "fake:cuda", "-o", "t.json", training)
    assert done.returncode == 125
    assert "allocated nothing on the GPU" in done.stderr


def test_a_device_that_nobody_knows_is_refused(memplan: Run, training: Path) -> None:
    done = memplan("record", "--device", "fake:cuda:abacus", "-o", "t.json", training)
    assert done.returncode == 2
    assert "fake:cuda:SIZE (24GiB) or one of fake:cuda:t4" in done.stderr


def test_tensors_are_real_again_after_the_block(tmp_path: Path) -> None:
    with package.record(tmp_path / "t.json", device="fake") as recording:
        large = torch.zeros(1 << 40)
        del large
    assert Summary.of(recording.trace.events).peak_live == 4 << 40
    assert torch.zeros(3).sum().item() == 0.0


@pytest.mark.soak
def test_fit_finds_the_largest_and_a_real_run_agrees(
    memplan: Run, training: Path
) -> None:
    options = ("--capacity", "600KiB", "--vary", "width=300..400", "--confirm")
    arguments = (*options, "--json", "-q", training, "5", "{width}")
    done = memplan("fit", *arguments, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    best, beyond = found["best"], found["beyond"]
    assert beyond["value"] == best["value"] + 1
    assert best["bytes"] <= 600 << 10 < beyond["bytes"]
    for one in (best, beyond):
        real = found["confirmed"][str(one["value"])]
        assert real == pytest.approx(one["bytes"], rel=0.02)
    assert found["sure"]["value"] < best["value"]


BLOCKS = """
import sys
import torch
from torch import nn

parts = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))] * 8
model = nn.Sequential(*parts)
for step in range(4):
    model(torch.randn(int(sys.argv[1]), 64)).square().mean().backward()
"""


def test_a_larger_batch_fits_where_modules_are_computed_again(
    memplan: Run, tmp_path: Path
) -> None:
    script(tmp_path, BLOCKS)
    options = ("--recompute", "-q", "--capacity", "6MiB")
    varied = ("--json", "--vary", "n=1389..1391", "train.py", "{n}")
    done = memplan("fit", *options, *varied)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["bytes"] <= 6 << 20 < found["beyond"]["bytes"]
    part = found["recompute"]
    assert part["eager_bytes"] > 12 << 20
    assert part["recomputed"] > 0
    value = str(found["answer"])
    told = memplan("fit", *options, "train.py", value).stdout
    assert "train.py fits" in told
    assert " bytes at least" in told
    assert f"{part['units']} units, {part['recomputed']:.0%}".replace("%", " %") in told
    # It is so in a real run.
    memplan("record", "-q", "--activations", "-o", "t.parquet", "train.py", value)
    solved = memplan("solve", "-q", "t.parquet", "--budget", "6MiB")
    assert solved.returncode == 0, solved.stderr


def test_fit_with_modules_computed_again_is_for_training_on_the_cpu(
    memplan: Run, tmp_path: Path
) -> None:
    script(tmp_path, ONE_TENSOR)
    for other in (("--confirm",), ("--device", "cuda")):
        done = memplan("fit", "--recompute", *other, "--capacity", "1MiB", "train.py")
        assert done.returncode == 2
        assert f"--recompute cannot be used with {' '.join(other)}" in done.stderr
    done = memplan("fit", "--recompute", "--capacity", "4MiB", "train.py", "400000")
    assert done.returncode == 2
    assert "no whole step of the trace has a forward and a backward pass" in done.stderr


ONE_TENSOR = """
import sys
import torch
x = torch.zeros(int(sys.argv[1]), dtype=torch.uint8)
"""


def test_fit_of_one_program_says_yes_or_no(memplan: Run, tmp_path: Path) -> None:
    script(tmp_path, ONE_TENSOR)
    done = memplan("fit", "-q", "--capacity", "4MiB", "train.py", "4000000")
    assert done.returncode == 0, done.stderr
    assert "train.py fits (1 recording, no memory used)" in done.stdout
    assert "4.0 MiB of live tensors" in done.stdout
    assert "train.py: 3.8 MiB\n" in done.stdout
    assert "with 8 % to spare  no\n" in done.stdout


@pytest.mark.soak
def test_fit_of_what_never_fits_ends_with_one(memplan: Run, tmp_path: Path) -> None:
    script(tmp_path, ON_GPU)
    options = ("--device", "cuda", "--capacity", "16MiB")
    done = memplan("fit", *options, "train.py")
    assert done.returncode == 1, done.stderr
    assert "train.py does not fit (1 recording, no memory used)" in done.stdout
    assert "out of memory" in done.stderr


def test_fit_says_nothing_of_a_program_that_asks_for_nothing_itself(
    memplan: Run, tmp_path: Path
) -> None:
    inner = "import torch; torch.ones(10000)"
    body = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}])"
    script(tmp_path, body)
    done = memplan("fit", "--capacity", "1GiB", "train.py")
    assert (done.returncode, done.stdout) == (125, "")
    assert "train.py allocated no tensors in its own process" in done.stderr


def test_fit_says_why_the_program_failed(memplan: Run, tmp_path: Path) -> None:
    script(tmp_path, ONE_TENSOR)
    done = memplan("fit", "--capacity", "1GiB", "train.py")
    assert (done.returncode, done.stdout) == (125, "")
    assert "train.py ended with 1: IndexError" in done.stderr


def test_fit_goes_down_to_what_really_fits(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def trial(
        server: ForkServer,
        target: Target,
        device: str,
        steps: int,
        activations: bool = False,
    ) -> Trial:
        assert not activations
        size = int(target.arguments[-1])
        return Trial(size + size // 10 * (device == "cpu"), 0, False, ())

    monkeypatch.setattr(fit, "trial", trial)
    script(tmp_path, ONE_TENSOR)
    options = ["-q", "--confirm", "--capacity", "4000000", "--vary", "n=1..5000000"]
    with pytest.raises(SystemExit) as ended:
        fit.command.main([*options, str(tmp_path / "train.py"), "{n}"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("-n 3636364 fits (")
    assert "really run: 4.2 MiB, 4,400,000 bytes\n" in said
    assert "really fits        -n 3636364: 3.8 MiB, 4,000,000 bytes\n" in said
    assert "does not really    -n 3636365: 3.8 MiB, 4,000,001 bytes\n" in said
    with pytest.raises(SystemExit):
        fit.command.main([*options, "--json", str(tmp_path / "train.py"), "{n}"])
    found = json.loads(capsys.readouterr().out)
    best, beyond = found["best"], found["beyond"]
    assert (best["value"], beyond["value"]) == (4_000_000, 4_000_001)
    assert best["bytes"] <= found["limit_bytes"] < beyond["bytes"]
    assert found["confirmed"]["4000000"] == 4_400_000
    assert found["sure"]["value"] < best["value"]
