"""The layers of a PyTorch model, from its Program; of an ONNX file, from its nodes."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from memplan.blocking.run.inventory import (
    Axis,
    Convolution,
    Inventory,
    ModelLayers,
    Reading,
    Reference,
    attention,
    matrix_product,
    once,
    product,
    recurrent,
)
from memplan.blocking.run.onnx_models import SUFFIX, layers_of_onnx
from memplan.errors import EnvironmentUnfitError, InputError
from memplan.factory import UserFile, blaming, parse_spec

_GATES = {2: 4, 3: 3}  # of ATen's modes of recurrent networks; of others 1
# Words in the names of operations that multiply matrices, or may.
_HEAVY = re.compile(
    r"(^|_)(\w*mm|mv|v?dot|matmul|linear|\w*conv\w*|convolution|attention|rnn|lstm|gru"
    r"|trilinear|cdist|euclidean_dist)(_|\d|$)|^addr$|^_?fft_|^_?linalg_(?!\w*norm)"
)
_LIGHT = re.compile(r"upsample|interpolate|backward|_cell$")


class MissingDataError(InputError):
    """An operation whose layers depend on a tensor's data, which it does not have."""


def read(operation: str, args: Any, kwargs: Any, result: Any) -> Reading:
    """What `operation`, an ATen operator's name and one of READ, comes to.

    Raises InputError where one of its sizes is 0, or too large.
    """
    return _READERS[operation](*args, result=result, **kwargs)


def may_multiply(namespace: str, operation: str) -> bool:
    """Whether an operation that `read` does not know may multiply matrices: others'
    own, and those that are called so."""
    if namespace not in ("aten", "prim", "prims", "profiler"):
        return True
    return bool(_HEAVY.search(operation) and not _LIGHT.search(operation))


def _convolution(  # noqa: PLR0913, PLR0917 - torch's own
    image: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: Any,
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *_: object,
    result: Any,
    **__: object,
) -> Reading:
    rank = weight.dim() - 2
    axes = tuple(
        Axis(result.shape[2 + i], weight.shape[2 + i], step, apart, image.shape[2 + i])
        for i, (step, apart) in enumerate(
            zip(_each(stride, rank), _each(dilation, rank), strict=True)
        )
    )
    first, second = int(weight.shape[0]), int(weight.shape[1])
    channels, kernels = (second, first // groups)
    if transposed:
        channels, kernels = first // groups, second
    batch = image.shape[0]
    return Convolution(batch, channels, kernels, groups, axes, transposed).read()


def _each(values: list[int], rank: int) -> list[int]:
    """One for every dimension; ATen takes one for all."""
    return list(values) * (rank if len(values) == 1 else 1)


def _along_time(
    image: Any, weight: Any, bias: Any, pad: int = 0, *, result: Any
) -> Reading:
    axis = Axis(result.shape[0], weight.shape[0])
    return Convolution(
        image.shape[1], weight.shape[1], weight.shape[2], 1, (axis,)
    ).read()


def _product(left: Any, right: Any, *_: object, **__: object) -> Reading:
    """Of matrices, or vectors."""
    rows, inner = (1, *left.shape)[-2:]
    return once(product(rows, inner, (*right.shape, 1)[1]))


def _added_to(reader: Callable[..., Reading]) -> Callable[..., Reading]:
    """The reader of the same operation whose first operand is added to the result."""
    return lambda added, *args, **kwargs: reader(*args, **kwargs)


def _products(left: Any, right: Any, *_: object, **__: object) -> Reading:
    # An operand that is expanded is one matrix for all.
    shapes = [
        (1 if one.shape[0] > 1 and one.stride(0) == 0 else one.shape[0], *one.shape[1:])
        for one in (left, right)
    ]
    if shapes[0][0] == shapes[1][0] == 1 < left.shape[0]:
        shapes[0] = tuple(left.shape)
    return once(matrix_product(*shapes))


def _sum_of_products(left: Any, right: Any, *_: object, **__: object) -> Reading:
    groups, rows, inner = left.shape
    return once(product(rows, groups * inner, right.shape[2]))


def _grouped(
    left: Any, right: Any, offs: Any = None, *_: object, **__: object
) -> Reading:
    """Rows of several experts, one below the other; offs: where each one's end."""
    if left.dim() == right.dim() == 3:
        return _products(left, right)
    if (left.dim(), right.dim()) != (2, 3):
        raise InputError(": groups whose sizes are not known")
    if offs.device.type == "meta" or hasattr(offs, "fake_mode"):
        raise MissingDataError(": groups whose sizes are not known")
    ends = [0, *offs.tolist()]
    rows = Counter(b - a for a, b in itertools.pairwise(ends) if b > a)
    _, inner, columns = right.shape
    return Reading(
        tuple((product(n, inner, columns), count) for n, count in rows.items())
    )


def _attention(query: Any, key: Any, value: Any, *_: object, **__: object) -> Reading:
    return attention(query.shape, key.shape, value.shape)


def _recurrent_layer(sequence: Any, *args: Any, **_: object) -> Reading:
    mode, hidden = args[8:10]  # after weights, states and a flag
    steps, batch, inputs = sequence.shape
    return recurrent(_GATES.get(mode, 1), steps, batch, inputs, hidden)


def _pooling(  # noqa: PLR0913 - torch's own
    image: Any,
    window: list[int],
    stride: list[int] | None = None,
    padding: Any = 0,
    dilation: Any = 1,
    *_: object,
    result: Any,
    rank: int,
    **__: object,
) -> Reading:
    reduced = result[0] if isinstance(result, tuple) else result
    # Of averages, that argument is no dilation.
    apart = dilation if isinstance(dilation, list | tuple) else [1]
    windows = _each(window, rank)
    steps, gaps = _each(list(stride or window), rank), _each(list(apart), rank)
    axes = map(Axis, reduced.shape[-rank:], windows, steps, gaps)
    batch, channels = math.prod(image.shape[: -rank - 1]), reduced.shape[-rank - 1]
    return Convolution(batch, 1, 1, channels, tuple(axes)).read().without_weights


_READERS: dict[str, Callable[..., Reading]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "conv_tbc": _along_time,
    "mm": _product,
    "_int_mm": _product,
    "_scaled_mm": _product,
    "addmm": _added_to(_product),
    "_addmm_activation": _added_to(_product),
    "bmm": _products,
    "baddbmm": _added_to(_products),
    "addbmm": _added_to(_sum_of_products),
    "_grouped_mm": _grouped,
    "mv": _product,
    "addmv": _added_to(_product),
    "dot": _product,
    "vdot": _product,
    "mkldnn_rnn_layer": _recurrent_layer,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "max_pool2d_with_indices": partial(_pooling, rank=2),
    "max_pool3d_with_indices": partial(_pooling, rank=3),
    "avg_pool2d": partial(_pooling, rank=2),
    "avg_pool3d": partial(_pooling, rank=3),
}
READ = frozenset(_READERS)


FLOPS_PER_MAC = 2  # torch counts an addition for each multiplication


def layers_of_model(spec: str) -> ModelLayers:
    """The layers that ``model.py:factory`` runs.

    The factory is called without arguments, and returns the model and its inputs, as a
    pair. The model runs once, without gradients.
    Raises UsageError or InputError where that fails, with the reason.
    """
    model, inputs = _made(spec)
    return layers_of(model, inputs, f"{spec}: the model")


def layers_of(
    model: Any, inputs: tuple[Any, ...], name: str = "the model"
) -> ModelLayers:
    """The layers that `model`, a torch.nn.Module, runs on `inputs`.

    Convolutions, matrix products, attention, recurrent layers and pooling, whether they
    come from modules or from functions. Operations that torch composes of others are
    taken apart. They are those of the model's Program, on tensors without data; a model
    that has none, or whose sizes depend on data, runs once instead. What may multiply
    and is in no layer is in `left_out`. Raises InputError where the model, called
    `name`, fails.
    """
    with _plainly():
        found = _of_program(model, inputs)
        if found is not None:
            return found.all()
        found = _Found()
        failing = blaming(f"{name} failed on its inputs")
        with failing, _no_grad(), found.following(model), found.watching():
            model(*inputs)
    return found.all()


def _of_program(model: Any, inputs: tuple[Any, ...]) -> _Found | None:
    """What the model's Program runs; None where there is none, or data decide."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memplan.graph.export import export
    from memplan.graph.infer import Inference
    from memplan.graph.lower import lower
    from memplan.graph.program import Op

    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        program = lower(export(model, inputs, {}), Inference())
        with FakeTensorMode():
            values = {name: _faked(meta) for name, meta in program.metas.items()}
            found = _Found()
            for op in program.ops:
                if isinstance(op, Op):
                    found.run(op, program.modules.get(op.name, ""), values)
    except Exception:  # torch's own kinds are many; the model itself says what is wrong
        return None
    finally:
        for module in training:
            module.training = True
    return found


def _faked(meta: Any) -> Any:
    """A tensor like `meta` without data; of several results a tuple."""
    import torch

    from memplan.graph.program import Meta

    if not isinstance(meta, Meta):
        return tuple(_faked(one) for one in meta)
    return torch.empty_strided(
        meta.shape, meta.strides, dtype=meta.dtype, device=meta.device
    )


def _no_grad() -> Any:
    import torch

    return torch.no_grad()


class _Found:
    """What ran, in which module."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        self._formulas = flop_registry
        self._module: list[str] = []
        self._inventory = Inventory()
        self._torchs = 0  # multiply-adds
        self._unknown: Counter[str] = Counter()

    def run(self, op: Any, module: str, values: Mapping[str, Any]) -> None:
        """One operator of a Program (`graph.program.Op`), on tensors without data."""
        from memplan.graph.program import Ref, mapped

        def value(one: Any) -> Any:
            return values[one.name] if isinstance(one, Ref) else one

        self._module.append(module or op.key)
        with _no_grad(), self.watching(by_values=False):
            op.target(*mapped(op.args, value), **mapped(op.kwargs, value))
        self._module.pop()

    def watching(self, by_values: bool = True) -> Any:
        """A mode that notes every ATen operation. by_values: whether tensors have data;
        without them MissingDataError is raised where data decide."""
        from torch._ops import OpOverload
        from torch.utils._python_dispatch import TorchDispatchMode

        found = self

        class Watch(TorchDispatchMode):  # type: ignore[misc]
            supports_higher_order_operators = True

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                given = kwargs or {}
                if not isinstance(func, OpOverload):
                    result = func(*args, **given)
                    found.note_other(func, args, given, result)
                    return result
                composed = func.namespace != "prim"
                if composed and func._overloadpacket.__name__ not in READ:
                    with self:
                        result = func.decompose(*args, **given)
                    if result is not NotImplemented:
                        return result
                result = func(*args, **given)
                found.note(func, args, given, result, by_values)
                return result

        return Watch()

    @contextmanager
    def following(self, model: Any) -> Iterator[None]:
        """While this lasts, know which module of `model` is running."""
        hooks = []
        for name, module in model.named_modules():
            label = name or type(model).__name__

            def enter(*_: object, label: str = label) -> None:
                self._module.append(label)

            def leave(*_: object) -> None:
                self._module.pop()

            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def note(
        self, func: Any, args: Any, kwargs: Any, result: Any, by_values: bool = True
    ) -> None:
        """One ATen operation, or one of others' own, that ran."""
        operation = str(func._overloadpacket.__name__)
        macs = self._by_torch(func._overloadpacket, args, kwargs, result)
        if operation not in READ or func.namespace != "aten":
            if macs is not None or may_multiply(func.namespace, operation):
                self._leave_out(f"{func.namespace}.{operation}", macs)
            return
        where = self._where(operation)
        try:
            reading = read(operation, args, kwargs, result)
        except InputError as error:
            if isinstance(error, MissingDataError) and not by_values:
                raise
            self._inventory.leave_out(where, f"{operation}{error}", macs)
            return
        self._inventory.take(where, reading)
        if macs is None and reading.macs:
            self._unknown[operation] += reading.macs

    def note_other(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """A call of higher order, whose parts are out of sight."""
        macs = self._by_torch(func, args, kwargs, result)
        self._leave_out(str(func), macs)

    def all(self) -> ModelLayers:
        """Everything noted so far."""
        reference = Reference(self._torchs, tuple(self._unknown.most_common()))
        return self._inventory.all(reference)

    def _by_torch(self, func: Any, args: Any, kwargs: Any, result: Any) -> int | None:
        """Multiply-adds by torch's own formula; None if it has none, or none for these
        shapes: some assert that heads are alike."""
        formula = self._formulas.get(func)
        if formula is None:
            return None
        try:
            macs = int(formula(*args, **kwargs, out_val=result)) // FLOPS_PER_MAC
        except Exception:
            return None
        self._torchs += macs
        return macs

    def _leave_out(self, name: str, macs: int | None) -> None:
        reason = f"{name} is one operation, whose products are not known"
        self._inventory.leave_out(self._where(name), reason, macs)

    def _where(self, otherwise: str) -> str:
        return self._module[-1] if self._module else otherwise


@contextmanager
def _plainly() -> Iterator[None]:
    """While this lasts, torch composes transformer layers of operations, and compiles
    nothing."""
    import torch

    backend = torch.backends.mha
    before = backend.get_fastpath_enabled()
    with ExitStack() as after:
        after.callback(backend.set_fastpath_enabled, before)
        backend.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # else nothing is compiled
            after.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _made(spec: str) -> tuple[Any, tuple[Any, ...]]:
    """The model and its inputs, from ``model.py:factory``."""
    file, name = parse_spec(spec)
    if importlib.util.find_spec("torch") is None:
        raise EnvironmentUnfitError(
            f"{spec} needs PyTorch: pip install 'memplan[torch]'"
        )
    made = UserFile(file).call(name)
    import torch

    pair = isinstance(made, tuple) and len(made) == 2
    if not pair or not isinstance(made[0], torch.nn.Module):
        raise InputError(f"{spec} must return a pair: the model, and its inputs")
    inputs = made[1] if isinstance(made[1], tuple) else (made[1],)
    return made[0], inputs


def is_model(text: str) -> bool:
    """Whether it names a model, and not a layer or a network."""
    return ":" in text or text.endswith(SUFFIX)


def layers_of_source(spec: str) -> ModelLayers:
    """The layers of ``model.py:factory`` or ``model.onnx``, which may be followed by
    sizes of dimensions that it leaves open: ``model.onnx:batch=8``.

    Raises UsageError, InputError or EnvironmentUnfitError, with the reason.
    """
    onnx = spec.endswith(SUFFIX) or f"{SUFFIX}:" in spec
    return layers_of_onnx(spec) if onnx else layers_of_model(spec)
