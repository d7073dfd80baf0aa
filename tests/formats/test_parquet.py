"""What pyarrow raises, as this project's errors."""

from __future__ import annotations

import pytest

from memplan.errors import FormatError
from memplan.formats.parquet import as_format_errors


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no magic\x1b bytes\nand more"), "(no magic\\x1b bytes)"),
        (MemoryError(), "(MemoryError)"),
    ],
)
def test_the_reason_is_the_first_line_in_ascii(error: Exception, reason: str) -> None:
    with pytest.raises(FormatError) as raised, as_format_errors("t.parquet", OSError):
        raise error
    assert f"damaged Parquet data {reason}" in str(raised.value)
