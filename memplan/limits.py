"""Limits on input from files and callers.

Readers refuse larger values before they allocate. Bytes and ticks are 63-bit integers,
and their sums must fit into an int64, too.
"""

from __future__ import annotations

MAX_INTEGER = (1 << 63) - 1  # of any integer in a file
MAX_TEXT = 64 << 10  # characters of any text in a file
MAX_TOTAL_BYTES = 1 << 62  # of all buffers of a problem together
MAX_LENGTH = 1 << 62  # ticks of a period; twice that still fits in an int64
MAX_LANES = 64  # of a plan for threads that make steps side by side
MAX_FILE_BYTES = 2 << 30  # of an input file that has no lower limit of its own
