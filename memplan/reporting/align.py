"""Which sites of two recordings are the same code, whatever its folder and its lines.

Each level narrows the next: modules and files are matched first, in files functions, in
functions lines, in order, and on a line sites. What has no partner stays apart, and so
does what has several that are as good.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

from memplan.reporting.same_lines import common_start, same_lines
from memplan.trace.sites import Site

Move = Literal["", "moved", "renamed"]
Sizes = frozenset[int]
Rank = tuple[int, ...]
Path = tuple[str, ...]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_MOST_HOLDERS = 256  # of what is to tell files, or functions, from each other
_LEAST_COMMON = 3  # sites, of files that are the same under another name
_PACKAGES = ("site-packages", "dist-packages")


class Function(NamedTuple):
    """A function of a file."""

    file: str
    name: str = ""

    @classmethod
    def of(cls, site: Site) -> Function:
        """The one that a site is in."""
        return cls(site.file, site.function)


@dataclass(frozen=True)
class Pair:
    """A site before and after; None where only the other recording has it.

    place: the site as AFTER names it; of one that is gone, as far as its module,
    function and line have partners there. line_gone: no line of AFTER is its line.
    move: "moved" from another file or function; "renamed" if its function is. whole:
    whether all of its file was moved, with this function.
    """

    before: Site | None
    after: Site | None
    place: Site
    move: Move = ""
    line_gone: bool = False
    whole: bool = False

    @property
    def site(self) -> Site:
        """The one after; before if that is gone."""
        return self.after or self.before or Site()


class _Item(NamedTuple):
    """A site, its module as AFTER names it, and its buffers' sizes."""

    site: Site
    module: str
    sizes: Sizes

    @property
    def key(self) -> tuple[str, str]:
        return self.module, self.site.operator

    @property
    def exact(self) -> tuple[str, str, Sizes]:
        return self.module, self.site.operator, self.sizes


class _Shared(NamedTuple):
    """How much two have in common, and how much the one with less and with more has."""

    common: int
    less: int
    more: int


_Items = list[_Item]
_Groups = dict[Function, _Items]


def align(before: Mapping[Site, Sizes], after: Mapping[Site, Sizes]) -> list[Pair]:
    """Every site of both recordings, once, with its partner where it has one.

    before, after: the sizes in bytes of each site's buffers, in the order first seen.
    """
    names = _modules(before, after)
    old = [_Item(s, names.get(s.module, s.module), z) for s, z in before.items()]
    new = [_Item(s, s.module, sizes) for s, sizes in after.items()]
    return _Alignment(old, new).pairs()


class _Alignment:
    def __init__(self, old: _Items, new: _Items) -> None:
        self._old, self._new = old, new
        mine, others = _grouped(old, _function), _grouped(new, _function)
        self._files = _files(old, new)
        self._in_place = _in_place(self._files)
        self._functions = _functions(mine, others, self._files)
        self._lines: dict[tuple[Function, int], Site] = {}
        self._found: dict[Site, Site] = {}  # of sites before, those after
        self._taken: set[Site] = set()
        for one, other in self._functions.items():
            self._align(one, mine[one], others[other])
        # Code that moved to another function, if there was nothing like it elsewhere.
        alone = _once(old, _exact).keys() & _once(new, _exact).keys()
        self._match([item for item in old if item.exact in alone], new, _exact)

    def _align(self, function: Function, old: _Items, new: _Items) -> None:
        """Match the lines and the sites of two functions."""
        mine, others = _grouped(old, _line), _grouped(new, _line)
        asked, asked_later = (
            {line: {i.key: i.sizes for i in items} for line, items in lines.items()}
            for lines in (mine, others)
        )
        for i, j in same_lines(asked, asked_later).items():
            self._lines[function, i] = others[j][0].site
            self._match(mine[i], others[j], _key)
        # Lines that changed places.
        self._match(old, new, _exact)
        self._match([item for item in old if item.module], new, _key)

    def _match(
        self, old: _Items, new: _Items, key: Callable[[_Item], Hashable]
    ) -> None:
        """Match what is left whose key is there once before, and once after."""
        mine = _once((item for item in old if item.site not in self._found), key)
        others = _once((item for item in new if item.site not in self._taken), key)
        for each in mine.keys() & others.keys():
            self._found[mine[each].site] = others[each].site
            self._taken.add(others[each].site)

    def pairs(self) -> list[Pair]:
        rest = [item.site for item in self._new if item.site not in self._taken]
        return [*map(self._pair, self._old), *(Pair(None, s, s) for s in rest)]

    def _pair(self, item: _Item) -> Pair:
        old = item.site
        new = self._found.get(old)
        if new is not None:
            move = self._move(old, new)
            same = (self._files.get(old.file), old.function) == Function.of(new)
            return Pair(old, new, new, move, whole=same and move == "moved")
        function = Function.of(old)
        place = replace(old, module=item.module)
        if function in self._functions:
            place = replace(place, function=self._functions[function].name)
        line = self._lines.get((function, old.line))
        if line is not None:
            place = replace(place, file=line.file, line=line.line)
        return Pair(old, None, place, line_gone=line is None)

    def _move(self, old: Site, new: Site) -> Move:
        partner = self._functions.get(Function.of(old))
        in_place = self._files.get(old.file) == new.file and old.file in self._in_place
        if not in_place or partner != Function.of(new):
            return "moved"
        return "" if old.function == new.function else "renamed"


def _modules(
    before: Mapping[Site, Sizes], after: Mapping[Site, Sizes]
) -> dict[str, str]:
    """AFTER's names of the modules that have another one there.

    A module is the same if its name and an operator are, if it asks for the same, or if
    a wrapper's name stands in front of its own.
    """
    mine, others = _requests(before), _requests(after)
    kept = {
        name
        for name in mine.keys() & others.keys()
        if not {o for o, _ in mine[name]}.isdisjoint(o for o, _ in others[name])
    }
    old = [name for name in mine if name and name not in kept]
    new = [name for name in others if name and name not in kept]
    found: dict[str, str] = {}
    same, other_same = (
        _grouped(old, mine.__getitem__),
        _grouped(new, others.__getitem__),
    )
    for asked in same.keys() & other_same.keys():
        if len(same[asked]) == len(other_same[asked]):
            found |= zip(same[asked], other_same[asked], strict=True)
    taken = set(found.values())
    return found | _wrapped(
        {name for name in old if name not in found},
        {name for name in new if name not in taken},
    )


def _wrapped(old: set[str], new: set[str]) -> dict[str, str]:
    """Modules whose path got longer, or shorter, at its beginning."""
    pairs = {(end, name) for name in new for end in _longest_end(name, old)}
    pairs |= {(name, end) for name in old for end in _longest_end(name, new)}
    counts = [Counter(pair[side] for pair in pairs) for side in (0, 1)]
    return {a: b for a, b in pairs if counts[0][a] == counts[1][b] == 1}


def _longest_end(path: str, of: set[str]) -> list[str]:
    parts = path.split(".")
    ends = (".".join(parts[i:]) for i in range(1, len(parts)))
    return [end for end in ends if end in of][:1]


def _requests(
    sites: Mapping[Site, Sizes],
) -> dict[str, frozenset[tuple[str, Sizes]]]:
    """Each module's operators with their sizes."""
    found: dict[str, set[tuple[str, Sizes]]] = {}
    for site, sizes in sites.items():
        found.setdefault(site.module, set()).add((site.operator, sizes))
    return {name: frozenset(asked) for name, asked in found.items()}


def _files(old: _Items, new: _Items) -> dict[str, str]:
    """The partner of each file that has one: that of its name, with the longest common
    end of their paths, or else one with most of its requests in its functions."""
    mine, others = (_grouped(items, _file) for items in (old, new))
    found = {file: file for file in mine.keys() & others.keys()}

    def same_name(one: str, other: str, shared: _Shared) -> Rank | None:
        end = common_start(_parts(one)[::-1], _parts(other)[::-1])
        enough = end and 2 * shared.common >= shared.less
        return (end, shared.common) if enough else None

    def other_name(_one: str, _other: str, shared: _Shared) -> Rank | None:
        enough = 2 * shared.common >= shared.more and shared.common >= _LEAST_COMMON
        return (shared.common,) if enough else None

    found |= _partners(*_rest(found, mine, others, _key), same_name)
    return found | _partners(*_rest(found, mine, others, _in_function), other_name)


def _functions(
    mine: _Groups, others: _Groups, files: Mapping[str, str]
) -> dict[Function, Function]:
    """The partner of each function that has one: that of its name in the same file, or
    else one with which it shares more than half of its requests.

    Requests of other sizes count only with the same file or name: those of a module, or
    several.
    """
    found = {
        one: other
        for one in mine
        if one.file in files
        and (other := Function(files[one.file], one.name)) in others
    }

    def rank(
        one: Function, other: Function, shared: _Shared, least: int = 0
    ) -> Rank | None:
        near = files.get(one.file) == other.file, one.name == other.name
        if shared.common < least or (least and not any(near)):
            return None
        enough = 2 * shared.common + any(near) > shared.more
        return (*near, shared.common) if enough else None

    for asked, least in ((_exact, 0), (_of_module, 1), (_key, _LEAST_COMMON)):
        rest = _rest(found, mine, others, asked)
        found |= _partners(*rest, partial(rank, least=least))
    return found


def _rest(
    found: Mapping[K, K],
    mine: Mapping[K, _Items],
    others: Mapping[K, _Items],
    asked: Callable[[_Item], Hashable],
) -> tuple[dict[K, set[Hashable]], dict[K, set[Hashable]]]:
    """What each asks for that has no partner yet, before and after."""
    taken = set(found.values())
    old = {each: set(map(asked, mine[each])) for each in mine if each not in found}
    new = {each: set(map(asked, others[each])) for each in others if each not in taken}
    return old, new


def _partners(
    old: Mapping[K, set[Hashable]],
    new: Mapping[K, set[Hashable]],
    rank: Callable[[K, K, _Shared], Rank | None],
) -> dict[K, K]:
    """Who is best for whom, of all that have something in common; nobody where two
    are as good. rank: of two by what they share; None if that is too little."""
    holders: dict[Hashable, list[K]] = {}
    for other, own in new.items():
        for each in own:
            holders.setdefault(each, []).append(other)
    ranks: dict[Rank, list[tuple[K, K]]] = {}
    for one, own in old.items():
        shared = [holders.get(each, ()) for each in own]
        some = (each for each in shared if len(each) <= _MOST_HOLDERS)
        for other, count in Counter(chain.from_iterable(some)).items():
            less, more = sorted((len(own), len(new[other])))
            if (found := rank(one, other, _Shared(count, less, more))) is not None:
                ranks.setdefault(found, []).append((one, other))
    partners: dict[K, K] = {}
    gone: tuple[set[K], set[K]] = set(), set()
    for _, edges in sorted(ranks.items(), reverse=True, key=lambda each: each[0]):
        free = [e for e in edges if e[0] not in gone[0] and e[1] not in gone[1]]
        counts = [Counter(edge[side] for edge in free) for side in (0, 1)]
        for one, other in free:
            gone[0].add(one)
            gone[1].add(other)
            if counts[0][one] == counts[1][other] == 1:
                partners[one] = other
    return partners


def _in_place(files: Mapping[str, str]) -> set[str]:
    """The files that did not move below the program's folder, wherever that is now."""
    found: set[str] = set()
    stayed: list[Path] = []
    heads: dict[tuple[Path, Path], list[str]] = {}
    for file, other in files.items():
        one, two = _parts(file), _parts(other)
        end = common_start(one[::-1], two[::-1])
        if file == other or (_package(one) and _package(one) == _package(two)):
            found.add(file)
            stayed += [] if _package(one) else [one]
        elif end:
            head = one[: len(one) - end], two[: len(two) - end]
            heads.setdefault(head, []).append(file)
    # The program's folder is that of most files, and the highest of such.
    if heads:
        head = max(heads, key=lambda each: (len(heads[each]), -len(each[0] + each[1])))
        if not any(path[: len(head[0])] == head[0] for path in stayed):
            found.update(heads[head])
    return found


def _parts(file: str) -> Path:
    return tuple(re.split(r"[/\\]", file))


def _package(path: Path) -> Path:
    """What stands behind the folder of installed packages; () if it is not in there."""
    at = max((i for i, part in enumerate(path) if part in _PACKAGES), default=len(path))
    return path[at + 1 :]


def _grouped(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    found: dict[K, list[V]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _once(items: Iterable[V], key: Callable[[V], Hashable]) -> dict[Hashable, V]:
    """By key, those that no other has the key of."""
    groups = _grouped(items, key)
    return {each: same[0] for each, same in groups.items() if len(same) == 1}


def _file(item: _Item) -> str:
    return item.site.file


def _line(item: _Item) -> int:
    return item.site.line


def _function(item: _Item) -> Function:
    return Function.of(item.site)


def _key(item: _Item) -> Hashable:
    return item.key


def _in_function(item: _Item) -> Hashable:
    return item.site.function, item.key


def _of_module(item: _Item) -> Hashable:
    """A module's, whatever the sizes."""
    return item.key if item.module else item.exact


def _exact(item: _Item) -> Hashable:
    return item.exact
