"""Models are small: on one thread they are run fastest, and always alike."""

from tests.chunking.conftest import one_thread

__all__ = ["one_thread"]
