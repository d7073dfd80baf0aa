"""The example programs: the right networks, and losses that repeat to the last bit."""

from __future__ import annotations

import hashlib
import re
import struct
import sys
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

RESNET = "--batch-size 4 --image-size 32 --layers 1 1 1 1 --width 8"
TEXT = "--batch-size 2 --layers 1 --width 16 --heads 2 --vocabulary 50"
SENTENCES = "--batch-size 2 --longest 12 --vocabulary 50 --width 16"
PROGRAMS = {
    "resnet50 --train": RESNET,
    "resnet50 --infer": RESNET,
    "resnet50 --train --accumulated 2": f"{RESNET} --epoch 2",
    "resnet50 --train --workers 1": f"{RESNET} --epoch 3",
    "resnet50 --infer --serve 3": f"{RESNET} --mixed",
    "googlenet --train": "--batch-size 2 --image-size 32",
    "alexnet --train": "--batch-size 2 --image-size 67",
    "vit --train": "--batch-size 2 --image-size 32 --layers 1 --width 16 --heads 2",
    "seq2seq --train": SENTENCES,
    "translator --train": f"{SENTENCES} --heads 2 --layers 1 --epoch 2",
    "decoder --infer": f"{TEXT} --words 5 --longest 20",
    "gan --train": "--batch-size 2 --noise 8 --width 4",
    "gpt2 --train": f"{TEXT} --sequence-length 8",
    "gpt2 --train --autocast": f"{TEXT} --sequence-length 8",
}
STEP = re.compile(r"step (\d+) loss (\S+) (-?\d+\.\d{6})")
TIME = re.compile(r"seconds/step median \d+\.\d{4}")


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., list[str]]]:
    """Runs a program here, at a tiny size; the lines it prints."""

    def lines(program: str, *arguments: str) -> list[str]:
        import program as module

        monkeypatch.setattr(sys, "argv", ["program.py", *tiny(program), *arguments])
        module.main()
        return capsys.readouterr().out.splitlines()

    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        yield lines
    torch.set_num_threads(threads)


def tiny(program: str) -> list[str]:
    words = f"{program} {PROGRAMS[program]} --threads 1 --steps 5"
    return words.split()


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_networks_have_the_published_number_of_parameters() -> None:
    from models.googlenet import GoogLeNet
    from models.gpt2 import GPT2
    from models.mobilenet import MobileNetV3

    with torch.device("meta"):
        sizes = [parameters(each()) for each in (GPT2, GoogLeNet, MobileNetV3)]
    # GoogLeNet's normalization has a scale and a shift where the original has a bias.
    assert sizes == [124_439_808, 6_998_552 + 7280, 5_483_032]


def test_a_decoder_with_a_cache_says_what_it_says_without() -> None:
    from models.gpt2 import CachedDecoder

    torch.manual_seed(0)
    model = CachedDecoder(20, 8, 2, 16, 2).eval()
    tokens = torch.randint(20, (3, 8))
    with torch.inference_mode():
        whole, _ = model(tokens, None)
        last, caches = model(tokens[:, :5], None)
        for place in range(5, 8):
            last, caches = model(tokens[:, place : place + 1], caches)
    torch.testing.assert_close(last, whole)
    assert [tuple(keys.shape) for keys, _ in caches] == [(3, 2, 8, 8)] * 2


def test_a_checkpointed_transformer_computes_the_same_gradients() -> None:
    from models.gpt2 import VisionTransformer

    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = VisionTransformer(
            16, 5, layers=2, width=16, heads=2, checkpointed=checkpointed
        )
        model(torch.randn(2, 3, 16, 16)).sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_server_answers_the_same_whoever_works(
    run: Callable[..., list[str]],
) -> None:
    program = "resnet50 --infer --serve 3"
    assert run(program)[:-1] == run(program, "--serve", "1")[:-1]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, marks=[pytest.mark.soak] if "alexnet" in name else [])
        for name in PROGRAMS
    ],
)
def test_a_program_repeats_its_losses_to_the_last_bit(
    program: str, run: Callable[..., list[str]]
) -> None:
    lines = run(program)
    assert TIME.fullmatch(lines[-1])
    assert lines[:-1] == run(program)[:-1]
    others = run(program, "--seed", "1")
    assert lines[0] != others[0]
    assert lines[-2] != others[-2]


def test_the_lines_hold_every_loss_exactly_and_their_digest(
    run: Callable[..., list[str]],
) -> None:
    lines = run("gpt2 --train", "--steps", "3")
    steps = [STEP.fullmatch(line) for line in lines[:3]]
    losses = []
    for number, step in enumerate(steps, 1):
        assert step is not None
        assert int(step[1]) == number
        losses.append(float.fromhex(step[2]))
        assert f"{losses[-1]:.6f}" == step[3]
    digest = hashlib.sha256(struct.pack("<3d", *losses)).hexdigest()
    assert lines[3] == f"loss-sha256 {digest}"
    assert lines[4] == "seconds/step median unknown: 4 steps or more needed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decoder", "--infer", "--epoch", "2"], "unrecognized arguments: --epoch"),
        (["seq2seq", "--train", "--longest", "2"], "--shortest is more than --longest"),
        (["gpt2", "--train", "--steps", "0"], "must be at least 1"),
        (["gpt2", "--infer"], "--train is required"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import program

    monkeypatch.setattr(sys, "argv", ["program.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        program.main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
