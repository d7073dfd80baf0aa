"""The CUDA kernels of every stack of the paper's networks, compiled for sm_90."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from memplan.fusing.cuda.form import Form  # noqa: E402
from memplan.fusing.front.capture import interpret, trace  # noqa: E402
from memplan.fusing.front.recognise import recognise  # noqa: E402
from memplan.fusing.join import join  # noqa: E402
from memplan.fusing.layers import StackNode  # noqa: E402
from memplan.fusing.operators import Operation  # noqa: E402
from memplan.fusing.options import Joining  # noqa: E402
from tests.fusing.test_cuda_compile import Compile, for_hopper, kernels  # noqa: E402
from tests.scripts.conftest import scripts_on_path  # noqa: E402

__all__ = ["for_hopper", "scripts_on_path"]  # fixtures

pytestmark = pytest.mark.torch

Case = tuple[tuple[Operation, ...], Form]


def stacks(name: str) -> set[Case]:
    """The distinct stacks of a network, as they are joined for a GPU."""
    from models.vision import build, input_shape

    network = build(name)
    program = trace(network, {})
    with torch.no_grad():
        interpret(
            program, network, {program.inputs[0]: torch.zeros(1, *input_shape(name))}
        )
    layers = recognise(program)
    nodes, _ = join(layers, Joining(epilogues=False, prologues=False, pools=False))
    found = set()
    for node in nodes:
        if isinstance(node, StackNode):
            _, channels, *plane = (*layers.shapes[node.source], 1, 1)[:4]
            form = Form("float32", channels, plane[0], plane[1], False)
            found.add((tuple(node.operations), form))
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("alexnet", "squeezenet1_1", "vgg11_bn"),
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("densenet201", "inception_v3", "resnet152", "vgg19")
        ),
    ],
)
def test_every_stack_of_a_network_compiles_for_a_gpu(
    name: str,
    for_hopper: Compile,
) -> None:
    found = stacks(name)
    assert found
    for operations, form in found:
        for kernel in kernels(operations, form):
            assert for_hopper(kernel).startswith(b"\x7fELF")
