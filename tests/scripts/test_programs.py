"""The example programs: the right networks, and losses that repeat to the last bit."""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).parents[2] / "scripts"

RESNET = "--batch-size 4 --image-size 32 --layers 1 1 1 1 --width 8"
TEXT = "--batch-size 2 --layers 1 --width 16 --heads 2 --vocabulary 50"
SENTENCES = "--batch-size 2 --longest 12 --vocabulary 50 --width 16"
PROGRAMS = {
    "resnet50 --train": RESNET,
    "resnet50 --infer": RESNET,
    "resnet50 --train --accumulated 2": f"{RESNET} --epoch 2",
    "resnet50 --train --workers 1": f"{RESNET} --epoch 3",
    "resnet50 --infer --serve 3": f"{RESNET} --mixed",
    "googlenet --train": "--batch-size 2 --image-size 32 --auxiliary",
    "alexnet --train": "--batch-size 2 --image-size 67",
    "vit --train": "--batch-size 2 --image-size 32 --layers 1 --width 16 --heads 2",
    "seq2seq --train": SENTENCES,
    "seq2seq --infer": f"{SENTENCES} --words 10",
    "translator --train": f"{SENTENCES} --heads 2 --layers 1 --epoch 2",
    "decoder --infer": f"{TEXT} --words 5 --longest 20",
    "gan --train": "--batch-size 2 --noise 8 --width 4",
    "gpt2 --train": f"{TEXT} --sequence-length 8",
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


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    from models.gpt2 import GPT2

    with torch.device("meta"):
        assert parameters(GPT2()) == 124_439_808


def test_googlenet_has_the_published_parameters_but_for_normalized_biases() -> None:
    from models.googlenet import GoogLeNet

    with torch.device("meta"):
        model = GoogLeNet()
    channels = sum(
        module.num_features
        for module in model.modules()
        if isinstance(module, torch.nn.BatchNorm2d)
    )
    # Normalization has a scale and a shift where the original has a bias.
    assert parameters(model) == 6_998_552 + channels


@pytest.mark.parametrize(("auxiliary", "heads"), [(False, 1), (True, 3)])
def test_googlenet_has_its_auxiliary_heads_in_training_only(
    auxiliary: bool, heads: int
) -> None:
    from models.googlenet import GoogLeNet

    with torch.device("meta"):
        model = GoogLeNet(10, auxiliary)
        images = torch.empty(2, 3, 64, 64)
        assert [tuple(head.shape) for head in model(images)] == [(2, 10)] * heads
        assert len(model.eval()(images)) == 1


def test_a_gpt2_token_sees_none_after_it() -> None:
    from models.gpt2 import GPT2

    torch.manual_seed(0)
    model = GPT2(vocabulary=20, context=8, layers=2, width=16, heads=2)
    tokens = torch.arange(8).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 5] = 19
    with torch.no_grad():
        same = (model(tokens) == model(changed)).all(dim=2)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


def test_a_decoder_with_a_cache_says_what_it_says_without() -> None:
    from models.cached_decoder import CachedDecoder

    torch.manual_seed(0)
    model = CachedDecoder(20, context=8, layers=2, width=16, heads=2).eval()
    tokens = torch.randint(20, (3, 8))
    with torch.inference_mode():
        whole, _ = model(tokens, None)
        last, caches = model(tokens[:, :5], None)
        for place in range(5, 8):
            last, caches = model(tokens[:, place : place + 1], caches)
    torch.testing.assert_close(last, whole)
    assert [tuple(keys.shape) for keys, _ in caches] == [(3, 2, 8, 8)] * 2


def test_a_checkpointed_transformer_computes_the_same_gradients() -> None:
    from models.vision_transformer import VisionTransformer

    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = VisionTransformer(
            16, 5, layers=2, width=16, heads=2, checkpointed=checkpointed
        )
        model(torch.randn(2, 3, 16, 16)).sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_translator_does_not_see_later_words() -> None:
    from models.translator import Translator

    torch.manual_seed(0)
    model = Translator(20, width=16, layers=1, heads=2)
    source, target = torch.randint(1, 20, (2, 1, 6))
    changed = target.clone()
    changed[0, 4] = 0
    with torch.no_grad():
        same = (model(source, target) == model(source, changed)).all(dim=2)[0]
    assert same[:4].all() and not same[4:].all()


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


def test_another_process_computes_the_same(run: Callable[..., list[str]]) -> None:
    command = [sys.executable, str(SCRIPTS / "program.py"), *tiny("gpt2 --train")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:-1] == run("gpt2 --train")[:-1]


def test_gpt2_trains_in_bfloat16_where_it_is_asked(
    run: Callable[..., list[str]],
) -> None:
    plain, rounded = (
        [
            float(found[3])
            for line in run("gpt2 --train", *how)
            if (found := STEP.match(line))
        ]
        for how in ((), ("--autocast",))
    )
    assert plain != rounded
    assert rounded == pytest.approx(plain, rel=0.05)


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


def test_the_median_leaves_the_first_three_steps_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import step_log

    times = iter([0.0, 50.0, 60.0, 70.0, 71.0, 73.0, 76.0])
    monkeypatch.setattr(step_log.time, "perf_counter", lambda: next(times))
    log = step_log.StepLog()
    for _ in range(6):
        log.step(1.0)
    log.finish()
    assert capsys.readouterr().out.splitlines()[-1] == "seconds/step median 2.0000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seq2seq", "--train", "--words", "2"], "--words is no option of --train"),
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
