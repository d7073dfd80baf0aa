"""A model as a functional ATen graph, with the time that takes bounded."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, fx, nn
    from torch.export import ExportGraphSignature
    from torch.utils._pytree import TreeSpec

EXPORT_SECONDS = 150.0  # an unrolled scan of long sequences takes for ever


class NotExportableError(InputError):
    """The model has no whole graph: control flow on data, or no fake kernels."""


@dataclass(frozen=True)
class Exported:
    """What `torch.export` gave: graph, signature and constants.

    graph: a torch.fx.Graph of functional ATen operators, parameters and buffers among
    its placeholders. signature: which placeholder is what. constants: the tensors that
    the model's code made. in_spec, out_spec: how arguments and results nest.
    """

    graph: fx.Graph
    signature: ExportGraphSignature
    constants: dict[str, Tensor]
    in_spec: TreeSpec
    out_spec: TreeSpec


def export(
    model: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    seconds: float = EXPORT_SECONDS,
) -> Exported:
    """Export `model` as it runs on these arguments, in inference.

    seconds: the time limit; in a thread that is not the main one there is none.
    Raises NotExportableError, in one line, where torch cannot.
    """
    import torch

    try:
        with _silence(), torch.no_grad(), _limited(seconds):
            program = torch.export.export(model, args, kwargs, strict=False)
            program = program.run_decompositions({})
    except _TimeUpError:
        raise NotExportableError(
            f"torch.export takes more than {seconds:.0f} s on this model"
        ) from None
    except Exception as error:  # torch.export lets errors of any kind through
        raise NotExportableError(
            f"torch.export cannot take this model: {first_line(error)}"
        ) from error
    return Exported(
        program.graph,
        program.graph_signature,
        dict(program.constants),
        program.call_spec.in_spec,
        program.call_spec.out_spec,
    )


def first_line(error: BaseException) -> str:
    """The error's kind and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Torch prints whole graphs when it fails; what went wrong is in the error."""
    unheard = io.StringIO()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(unheard),
            contextlib.redirect_stderr(unheard),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


class _TimeUpError(BaseException):
    """Not an Exception, so that nothing in between takes it for a failed trial."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _TimeUpError

    before = signal.signal(signal.SIGALRM, stop)
    if before is None:  # set by other code than Python's, and not to be put back
        before = signal.SIG_DFL
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # a timer of the program's own goes on; one that is due is due now
            rest = left - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(rest, 1e-6), every)
