"""Samples of all operators, by family."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.chunking.rules import arithmetic_samples as arithmetic
from tests.chunking.rules import elementwise_samples as elementwise
from tests.chunking.rules import image_samples as images
from tests.chunking.rules import shape_samples as shapes
from tests.chunking.rules.rule_check import Sample

FAMILIES: list[Callable[[], Iterator[Sample]]] = [
    elementwise.elementwise_samples,
    elementwise.factory_samples,
    shapes.view_samples,
    shapes.axis_samples,
    shapes.piece_samples,
    arithmetic.contraction_samples,
    arithmetic.reduction_samples,
    arithmetic.lookup_samples,
    arithmetic.normalisation_samples,
    arithmetic.attention_samples,
    images.convolution_samples,
    images.pooling_samples,
    images.resampling_samples,
]
