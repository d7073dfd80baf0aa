"""Records of bench_fuse.py as tables; the paper's Tables 1 and 2 laid out anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from memplan.fusing.networks import NAMES

Record = Mapping[str, Any]

# The paper's Table 1, CPU: speed-up over PyTorch 0.3 in per cent, at batch 1, 8, 32.
# Table 2: layers, those optimised, stacks; their share of the time and what fusing
# gains in all, in per cent, at batch 128.
PAPER: dict[str, tuple[tuple[float, float, float], tuple[int, int, int, float, float]]]
PAPER = {
    "alexnet": ((5.3, 2.4, 2.5), (27, 12, 8, 3.0, 2.5)),
    "inception_v3": ((6.9, 6.2, 6.3), (316, 203, 103, 8.7, 7.1)),
    "densenet121": ((15.2, 11.9, 11.8), (429, 247, 124, 13.1, 10.5)),
    "densenet161": ((16.8, 11.6, 11.2), (569, 327, 164, 10.9, 8.9)),
    "densenet169": ((19.1, 13.6, 12.8), (597, 343, 172, 13.9, 11.2)),
    "densenet201": ((23.2, 14.6, 13.6), (709, 407, 204, 13.7, 11.0)),
    "resnet18": ((6.4, 0.5, 4.0), (71, 39, 21, 4.8, 3.8)),
    "resnet34": ((3.0, 3.5, 2.9), (127, 71, 37, 3.6, 2.9)),
    "resnet50": ((6.7, 2.2, 2.7), (177, 104, 54, 8.2, 6.4)),
    "resnet101": ((4.7, 2.6, 2.0), (347, 206, 105, 6.5, 5.0)),
    "resnet152": ((5.5, 1.4, 1.3), (517, 308, 156, 6.3, 4.8)),
    "squeezenet1_0": ((41.1, 22.8, 29.1), (66, 31, 29, 4.5, 4.0)),
    "squeezenet1_1": ((39.7, 17.8, 32.1), (66, 31, 29, 16.9, 13.9)),
    "vgg11": ((11.1, 7.0, 5.7), (35, 17, 10, 3.8, 3.3)),
    "vgg11_bn": ((12.4, 8.2, 6.7), (43, 25, 10, 4.5, 4.0)),
    "vgg13": ((11.8, 5.0, 4.1), (39, 19, 12, 3.3, 2.8)),
    "vgg13_bn": ((8.3, 5.6, 5.1), (49, 29, 12, 4.0, 3.3)),
    "vgg16": ((6.2, 4.6, 3.8), (45, 22, 15, 2.7, 2.4)),
    "vgg16_bn": ((6.0, 5.2, 4.5), (58, 35, 15, 3.4, 2.9)),
    "vgg19": ((11.9, 4.9, 3.7), (51, 25, 18, 2.5, 2.1)),
    "vgg19_bn": ((5.1, 4.7, 4.2), (67, 41, 18, 3.0, 2.6)),
}
PAPER_BATCHES = (1, 8, 32)
NOTHING = "–"


def line(*cells: object) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    return "\n".join(
        [line(*head), line(*["---"] * len(head)), *(line(*r) for r in rows)]
    )


def heading(contenders: Sequence[str]) -> str:
    """What stands above `row`: milliseconds by contender, and the ratios."""
    head = ["network", "batch", "threads", *(f"{name} ms" for name in contenders)]
    head += ["over eager", "over compile", "error", "MiB eager → memplan", "remarks"]
    return table(head, [])


def row(record: Record, contenders: Sequence[str]) -> str:
    """A record in one line."""
    seconds, ratios = record["seconds"], record["ratios"]
    cells: list[object] = [record[key] for key in ("network", "batch", "threads")]
    cells += [
        f"{1e3 * seconds[c]:.2f}" if c in seconds else NOTHING for c in contenders
    ]
    for name in ("eager", "compile"):
        cells.append(_spread(ratios[name]) if name in ratios else NOTHING)
    error = record["max_relative_error"]
    cells.append(NOTHING if error is None else f"{error:.0e}")
    peaks = record["peak_activation_bytes"]
    both = (peaks.get(name) for name in ("eager", "memplan"))
    cells.append(" → ".join(NOTHING if b is None else f"{b / 2**20:.1f}" for b in both))
    remarks = [f"compile: {record['compiled']}"] if record["compiled"] else []
    remarks += [
        f"{name}: {', '.join(said)}" for name, said in record.get("remarks", {}).items()
    ]
    remarks += [f"{name} failed: {why}" for name, why in record["failures"].items()]
    return line(*cells, "; ".join(remarks).replace("|", "\\|"))


def _spread(ratio: Mapping[str, float]) -> str:
    return f"{ratio['min']:.2f} · {ratio['median']:.2f} · {ratio['max']:.2f}"


def cold_and_warm(found: Mapping[str, float | str]) -> str:
    """Seconds of a first call with cold and with warm caches, or why there are none."""
    if "failure" in found:
        return f"failed: {found['failure']}"
    return f"{found['cold']:.2f} s cold, {found['warm']:.2f} s warm"


def summary(records: Sequence[Record]) -> list[str]:
    """How often, and by how much in the geometric mean, memplan is faster."""
    lines = []
    for name in ("eager", "channels_last", "compile", "onnxruntime", "openvino"):
        ratios = [r["ratios"][name]["median"] for r in records if name in r["ratios"]]
        if ratios:
            faster = sum(ratio > 1 for ratio in ratios)
            lines.append(
                f"over {name}: faster on {faster} of {len(ratios)}, "
                f"{geometric_mean(ratios):.2f} times in the geometric mean"
            )
    return lines


def first(records: Sequence[Record]) -> str:
    """Table 1: the speed-up by network and batch; the paper's beside it.

    Ours are times as fast as eager and as the best torch.compile, here and now.
    """
    threads = sorted({record["threads"] for record in records})
    batches = sorted({record["batch"] for record in records})
    head = ["network", "threads"]
    for batch in batches:
        head += [f"batch {batch}: over eager", "over compile"]
        head += ["the paper's over eager"] if batch in PAPER_BATCHES else []
    rows = []
    for network in NAMES:
        for count in threads:
            cells: list[object] = [network, count]
            for batch in batches:
                one = _find(records, (network, batch, count))
                for key in ("ratio_to_eager", "ratio_to_compile"):
                    ratio = None if one is None else one[key]
                    cells.append(_two(ratio))
                if batch in PAPER_BATCHES:
                    per_cent = PAPER[network][0][PAPER_BATCHES.index(batch)]
                    cells.append(f"{1 + per_cent / 100:.2f}")
            if any(_find(records, (network, batch, count)) for batch in batches):
                rows.append(cells)
    return table(head, rows)


def second(records: Sequence[Record]) -> str:
    """Table 2, at the largest batch there is of each network, the paper's in brackets:
    layers, optimisable, stacks, their share of eager's time, times as fast in all."""
    head = [
        "network", "batch", "layers", "optimisable", "stacks", "share of time",
        "over eager",
    ]  # fmt: skip
    rows = []
    for network in NAMES:
        known = [r for r in records if r["network"] == network and "layers" in r]
        if not known:
            continue
        one = max(known, key=lambda record: (record["batch"], -record["threads"]))
        layers, optimisable, stacks, share, total = PAPER[network][1]
        ratio = one["ratio_to_eager"]
        rows.append(
            [
                network,
                one["batch"],
                f"{one['layers']} ({layers})",
                f"{one['optimisable']} ({optimisable})",
                f"{one['stacks']} ({stacks})",
                f"{100 * one['share_of_time']:.1f} % ({share} %)",
                f"{_two(ratio)} ({1 + total / 100:.2f})",
            ]
        )
    return table(head, rows)


def _two(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}"


def _find(records: Sequence[Record], key: tuple[str, int, int]) -> Record | None:
    """The last record of a network, batch and threads."""
    fields = ("network", "batch", "threads")
    for record in reversed(records):
        if tuple(record[name] for name in fields) == key:
            return record
    return None
