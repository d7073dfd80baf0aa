"""The arguments of a call that is made twice, as the first call finds them."""

from __future__ import annotations

from typing import Any

from memplan.recording.activations import version_of
from memplan.recording.held import alike, copy_of, is_object, tensors_in


class Arguments:
    """Those of one call: the first one gets the very arguments, which it may change, a
    later one gets copies of containers and objects, as they were.

    It holds no tensor but those that objects held before the call. An object itself is
    let go where it might come to hold what the call makes: that would hold it in turn.
    """

    def __init__(self, args: Any, kwargs: Any) -> None:
        from torch.utils import _pytree as pytree

        leaves, self._structure = pytree.tree_flatten((args, kwargs))
        # What is one object in the first call is one in the second: torch's attention
        # goes another way for a query that is not its key.
        places: dict[int, int] = {}
        self._which = [places.setdefault(id(leaf), len(places)) for leaf in leaves]
        self._first = [(args, kwargs)]
        values = list({id(leaf): leaf for leaf in leaves}.values())
        objects = [place for place, leaf in enumerate(values) if is_object(leaf)]
        self._objects = {place: values[place] for place in objects}
        self._before: dict[int, Any] = copy_of(self._objects)
        self._same: dict[int, Any] = {}
        self._versions = self._versions_now()
        #: What the arguments are made of, each once, for `again`; None for objects.
        self.values = [None if i in objects else each for i, each in enumerate(values)]

    @property
    def fresh(self) -> bool:
        """Whether the first call is still to come."""
        return bool(self._first)

    def first(self) -> tuple[Any, Any]:
        """The arguments and keyword arguments of the first call; once."""
        self.values = []
        return self._first.pop()

    def made(self) -> None:
        """The first call is over. Objects that hold no tensor, and are as they were,
        are given to the second as they are."""
        for place, value in self._objects.items():
            holds = next(tensors_in(value), None) is not None
            if not holds and alike(self._before[place], value):
                self._same[place] = value
                del self._before[place]
        self._objects.clear()

    def again(self, values: tuple[Any, ...]) -> tuple[Any, Any]:
        """Those of a later call, of what they are made of.

        Raises RuntimeError if a tensor in an object has been changed in place since.
        """
        from torch.utils import _pytree as pytree

        if self._versions != self._versions_now():
            raise RuntimeError(
                "memplan: a tensor in an object that a module was given was changed in "
                "place between its forward call and the backward pass, which needs the "
                "call again"
            )
        found = dict(enumerate(values)) | self._same | copy_of(self._before)
        leaves = [found[place] for place in self._which]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return args, kwargs

    def _versions_now(self) -> list[int]:
        if not self._before:
            return []
        return [version_of(tensor) for tensor in tensors_in(self._before)]
