"""The version of memplan: of the package, and in the files that it writes."""

from __future__ import annotations

__version__ = "0.1.0"
