"""The layers of ONNX files: shapes that follow, sizes left open, what is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memplan.blocking.nest.layer import Layer
from memplan.blocking.run.inventory import ModelLayers
from memplan.blocking.run.onnx_models import layers_of_onnx, parse_onnx_spec
from memplan.errors import EnvironmentUnfitError, InputError, UsageError

onnx = pytest.importorskip("onnx")
Shapes = dict[str, Sequence[Any]]


def saved(
    file: Path, nodes: list[Any], inputs: Shapes, weights: Shapes, opset: int = 17
) -> Path:
    """A model of these nodes, whose last one's first result is its output."""
    from onnx import TensorProto, helper

    def value(name: str, shape: Sequence[Any]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    kept = [
        helper.make_tensor(
            name, TensorProto.FLOAT, shape, bytes(4 * _size(shape)), True
        )
        for name, shape in weights.items()
    ]
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(
        nodes, "g", [value(*one) for one in inputs.items()], [out], kept
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports), str(file))
    return file


def _size(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(
        kind, inputs.split(), outputs.split(), name=f"n_{kind}", **attributes
    )


def one(
    tmp_path: Path, made: Any, inputs: Shapes, weights: Shapes | None = None
) -> ModelLayers:
    file = saved(tmp_path / "m.onnx", [made], inputs, weights or {}, 23)
    return layers_of_onnx(str(file))


def layer_list(found: ModelLayers) -> list[tuple[Layer, int]]:
    return [(x.layer, x.count) for x in found.layers]


def test_convolutions_pooling_and_products(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "a", strides=[2, 1], pads=[1, 1, 1, 1], group=2),
        node("Relu", "a", "b"),
        node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]),
        node("ConvTranspose", "c v", "d", strides=[2, 2]),
        node("Flatten", "d", "e"),
        node("Gemm", "e u bias", "f", transB=1),
    ]
    weights = {"w": [8, 2, 3, 3], "v": [8, 5, 2, 2], "u": [10, 160], "bias": [10]}
    file = saved(tmp_path / "m.onnx", nodes, {"x": ["batch", 4, 8, 8]}, weights)
    found = layers_of_onnx(f"{file}:batch=3")
    assert layer_list(found) == [
        (Layer("n_Conv", 8, 4, 2, 4, 3, 3, B=3, G=2, stride=(1, 2)), 1),
        (Layer("n_MaxPool", 4, 2, 1, 1, 2, 2, 3, 8, (2, 2), kernel=False), 1),
        (Layer("n_ConvTranspose", 4, 2, 8, 20, B=3), 1),
        (Layer("n_Gemm", 1, 1, 160, 10, B=3), 1),
    ]
    assert found.left_out == () and found.reference is None
    assert found.notes == ("dimensions that the file leaves open: batch = 3",)


@pytest.mark.parametrize(
    ("made", "inputs", "layers"),
    [
        (
            node("MatMul", "x y", "z"),
            {"x": [5, 2, 3], "y": [3, 7]},
            [(Layer("n_MatMul", 1, 1, 3, 7, B=10), 1)],
        ),
        (
            node("MatMul", "x y", "z"),
            {"x": [3], "y": [5, 3, 7]},
            [(Layer("n_MatMul", 1, 1, 3, 35), 1)],
        ),
        (
            node("Einsum", "x y", "z", equation="bij,bkj->bik"),
            {"x": [4, 5, 6], "y": [4, 7, 6]},
            [(Layer("n_Einsum", 1, 1, 6, 7, B=5, G=4), 1)],
        ),
        (
            node("LSTM", "x w r", "z", hidden_size=8),
            {"x": [10, 3, 16], "w": [2, 32, 16], "r": [2, 32, 8]},
            [
                (Layer("n_LSTM", 1, 1, 16, 32, B=30), 2),
                (Layer("n_LSTM", 1, 1, 8, 32, B=3), 20),
            ],
        ),
        (
            node("Attention", "x y y", "z", q_num_heads=4, kv_num_heads=2),
            {"x": [1, 5, 32], "y": [1, 6, 16]},
            [
                (Layer("n_Attention", 1, 1, 8, 6, B=10, G=2), 1),
                (Layer("n_Attention", 1, 1, 6, 8, B=10, G=2), 1),
            ],
        ),
        (
            node("Conv", "x y", "z", dilations=[2]),
            {"x": [1, 3, 12], "y": [4, 3, 3]},
            [(Layer("n_Conv", 4, 1, 3, 4, 3, B=2), 1)],
        ),
        (node("Einsum", "x", "z", equation="ij->ji"), {"x": [2, 3]}, []),
    ],
)
def test_other_products(
    tmp_path: Path, made: Any, inputs: Shapes, layers: list[tuple[Layer, int]]
) -> None:
    found = one(tmp_path, made, inputs)
    assert layer_list(found) == layers
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("made", "inputs", "reason"),
    [
        (
            node("Fancy", "x", "z", domain="com.microsoft"),
            {"x": [2, 3]},
            "com.microsoft.Fancy is one operation",
        ),
        (
            node("Einsum", "x x x", "z", equation="ij,jk,kl->il"),
            {"x": [3, 3]},
            "Einsum is one operation",
        ),
        (
            node("MatMulNBits", "x", "z", domain="com.microsoft"),
            {"x": [2, 3]},
            "MatMulNBits: C is 0",
        ),
    ],
)
def test_what_is_in_no_layer(
    tmp_path: Path, made: Any, inputs: Shapes, reason: str
) -> None:
    found = one(tmp_path, made, inputs)
    assert found.layers == ()
    assert reason in found.left_out[0].reason
    assert found.left_out[0].macs is None


def test_a_shape_that_does_not_follow(tmp_path: Path) -> None:
    nodes = [
        node("Fancy", "x", "y", domain="com.microsoft"),
        node("MatMul", "y y", "z"),
    ]
    found = layers_of_onnx(str(saved(tmp_path / "m.onnx", nodes, {"x": [2, 2]}, {})))
    reasons = [left.reason for left in found.left_out]
    assert reasons[1] == "MatMul, whose input 'y' has no known shape"


def test_products_in_branches_are_told(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    out = helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    then = helper.make_graph([node("MatMul", "x x", "p")], "then", [], [out])
    other = helper.make_graph([node("Relu", "x", "p")], "other", [], [out])
    made = node("If", "c", "z", then_branch=then, else_branch=other)
    condition = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("", TensorProto.BOOL, [], [1])
    )
    file = saved(tmp_path / "m.onnx", [condition, made], {"x": [2, 2]}, {})
    (left,) = layers_of_onnx(str(file)).left_out
    assert left.reason == "how often If runs what is in it is not known"


def test_sizes_left_open(tmp_path: Path) -> None:
    made, weights = node("MatMul", "x w", "z"), {"w": [4, 5]}
    file = saved(tmp_path / "m.onnx", [made], {"x": ["n", None, 4]}, weights)
    found = layers_of_onnx(f"{file}:n=6,x[1]=7")
    assert layer_list(found) == [(Layer("n_MatMul", 1, 1, 4, 5, B=42), 1)]
    assert layer_list(layers_of_onnx(str(file)))[0][0].B == 1
    with pytest.raises(UsageError, match="leaves no 'batch' open, but n, x"):
        layers_of_onnx(f"{file}:batch=2")


@pytest.mark.parametrize("text", ["m.onnx:8", "m.onnx:n=0", "m.onnx:n=x", "m.onnx:"])
def test_sizes_that_make_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="is no size of a dimension"):
        parse_onnx_spec(text)


def test_shapes_that_nodes_compute(tmp_path: Path) -> None:
    """Two axes are joined by a reshape whose sizes come from the input's shape."""
    from onnx import numpy_helper

    sizes = {"zero": [0], "rest": [-1]}
    constants = [
        onnx.helper.make_node(
            "Constant", [], [name], value=numpy_helper.from_array(np.array(value))
        )
        for name, value in sizes.items()
    ]
    nodes = [
        *constants,
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Mul", "n n", "squared"),
        node("Sqrt", "squared_f", "root"),
        node("Cast", "root", "back", to=7),
        node("Concat", "back rest", "to", axis=0),
        node("Reshape", "x to", "y"),
        node("MatMul", "y w", "z"),
    ]
    nodes.insert(5, node("Cast", "squared", "squared_f", to=1))
    weights = {"w": [24, 2000]}
    file = saved(tmp_path / "m.onnx", nodes, {"x": ["batch", 4, 6]}, weights)
    found = layers_of_onnx(f"{file}:batch=9")
    assert layer_list(found) == [(Layer("n_MatMul", 1, 1, 24, 2000, B=9), 1)]


def test_values_that_would_be_huge_are_not_made(tmp_path: Path) -> None:
    from onnx import numpy_helper

    size = numpy_helper.from_array(np.array([1 << 40]))
    nodes = [
        onnx.helper.make_node("Constant", [], ["n"], value=size),
        node("ConstantOfShape", "n", "y"),
        node("MatMul", "y y", "z"),
    ]
    file = saved(tmp_path / "m.onnx", nodes, {"x": [1]}, {})
    (left,) = layers_of_onnx(str(file)).left_out
    assert "C is 1099511627776" in left.reason


def test_what_is_no_onnx_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        layers_of_onnx(str(tmp_path / "none.onnx"))
    file = tmp_path / "m.onnx"
    for content in (b"", b"no model at all", b"\x00" * 100):
        file.write_bytes(content)
        with pytest.raises(InputError, match="this is no ONNX model"):
            layers_of_onnx(str(file))


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    made = node("MatMul", "x y", "z")
    (left,) = one(tmp_path, made, {"x": [2, 3], "y": [4, 5]}).left_out
    assert left.reason == "MatMul, which makes no sense: (2, 3) by (4, 5)"
    (left,) = one(tmp_path, node("Gemm", "x", "z"), {"x": [2, 3]}).left_out
    assert left.reason.startswith("Gemm, which makes no sense")
    shapes = {"x": [1, 4, 8, 8], "w": [4, 4, 3, 3]}
    (left,) = one(tmp_path, node("Conv", "x w", "z", group=0), shapes).left_out
    assert left.reason.startswith("Conv, which makes no sense")


def test_opsets_that_are_missing(tmp_path: Path) -> None:
    file = saved(tmp_path / "m.onnx", [node("Relu", "x", "z")], {"x": [2]}, {})
    model = onnx.load(str(file))
    del model.opset_import[:]
    onnx.save(model, str(file))
    with pytest.raises(InputError, match="its shapes do not fit together"):
        layers_of_onnx(str(file))


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentUnfitError, match=r"pip install 'memplan\[onnx\]'"):
        layers_of_onnx(str(file))
