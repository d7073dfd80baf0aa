"""The blocking paper's figures 3 to 9 and its claims, as memplan's model gives them.

    python scripts/paper_blocking.py [--output docs]

Writes `blocking.md`, and the figures beside it; takes some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import blocking_code as code
from bench import blocking_figures as figures
from bench import blocking_machines as machines
from bench import blocking_sliding as sliding
from bench import zigzag_bounds as bounds
from bench.blocking_claims import claims
from bench.blocking_networks import network_rows
from bench.blocking_page import Page
from bench.json_lines import Record, read_records
from bench.zigzag_tables import tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    parser.add_argument(
        "--zigzag",
        type=Path,
        default=Path("docs/blocking-zigzag.jsonl"),
        help="records of scripts/bench_zigzag.py",
    )
    args = parser.parse_args()
    records = read_records(args.zigzag)
    args.output.mkdir(parents=True, exist_ok=True)
    page = Page(args.output)
    page.say("# Blocking CNNs: the paper's figures")
    page.say(
        "What *A Systematic Approach to Blocking Convolutional Neural Networks* (Yang "
        "et al., 2016) reports, and what memplan's model gives for the same layers. "
        "Every number here is written by `scripts/paper_blocking.py`. Nests have any "
        "extents, and the window's loops anywhere, where nothing else is said; "
        "optimal means optimal among all of these. The model counts each level's own "
        "halo, 2n - 1 accesses for n updates of a sum, and the first fetch from main "
        "memory, none of which equation 1 does (`memplan blocking evaluate --counting "
        "paper` counts as the paper says). Beside the paper's buffers a nest may have "
        "stripes of the input: along X and Y tiles overlap where the window is wider "
        "than its step, and one buffer for all that such a loop sweeps over is filled "
        "once; whole, as every buffer is, unless memories shift as the paper's "
        "registers do (section 4.2, further down). Energies are its Table 3, words "
        "256, 512 and 256 bits, elements of 16 bits, a multiplication 1 pJ, the "
        "datapath 16 x 16 channels. Other bits and energies, and bandwidths, are in "
        "[hierarchies.md](hierarchies.md), cycles in [latency.md](latency.md)."
    )
    figures.figures_3_and_4(page)
    figures.figure_5(page)
    figures.figure_6(page)
    figures.figure_7(page)
    figures.figure_8(page)
    machines.figure_9(page)
    machines.mappings(page)
    figures.windows_apart(page)
    page.say("## What the whole space changed")
    page.say(
        "Until nests could have any extents and the window's loops stand anywhere, "
        "Figure 5's optimal bars were 10.31, 25.60, 10.00, 6.94 and 7.44 pJ/MAC, "
        "proved among nests whose extents divide each other with the window in one "
        "piece. Conv3 is also no longer rounded up to the datapath's 112 x 208 "
        "channels. DianNao's memories do better than they seemed to, so that Figure "
        "6's ratio for Conv2, optimal / this, which was 26.0, and Figure 7's savings "
        "are smaller."
    )
    page.say("## What stripes of the input changed")
    page.say(
        "Until nests could have stripes of the input, Conv2 took 0.889 pJ/MAC with "
        "memories of 8 MB (Figures 6 and 8), and LRN 0.416 without compulsory "
        "traffic; Conv1, Conv2 and Conv3 took 0.835, 0.984 and 1.370 among nests "
        "whose extents divide each other with the window in one piece. On DianNao's "
        "memories the optima of the five are the same."
    )
    page.say("## Networks on one hierarchy (section 3.6)")
    page.say(
        "Total energy of all layers, convolutions and fully connected ones, on "
        "memories common to them. The paper's method takes the 10 best designs of "
        "each layer and what these have in common; here it takes twice as many, "
        "and so on, where they have nothing. Ours starts from its result, and "
        "from others. Each layer's nest, but the last one's, whose 1,000 channels the "
        "datapath does not divide, is proved optimal on the memories among nests "
        "whose extents divide each other and whose window is in one piece. The "
        "gap is to what such nests take where each layer has all memories for itself, "
        "less than which none that they share take."
    )
    page.table(
        "network | budget | paper's method, mJ | memplan, mJ | ratio | gap | seconds",
        network_rows(),
    )
    beside_zigzag(page, records)
    bounds.section(page, records)
    sliding.section(page, records)
    code.section(page)
    page.say("## Headlines")
    page.table("the paper | here | agrees", list(claims()))
    page.write()
    print(f"wrote {args.output / 'blocking.md'}")


def beside_zigzag(page: Page, records: Sequence[Record]) -> None:
    """Energies beside those of ZigZag's best mappings."""
    page.say("## Beside ZigZag")
    page.say(
        "Layers of three networks on the same memories, in KiB for input / kernel / "
        "output: `scripts/bench_zigzag.py` against ZigZag 3.9.1, whose own search of "
        "loop orders (LOMA, its default of 6 prime factors) minimises energy; pJ/MAC "
        "of memory, all tensors 16 bits, registers free, filling a memory as dear as "
        "reading it, 16 x 16 channels at once, of depthwise layers 8, which divides "
        "all their channels. Energies without a star are proved optimal among all "
        "nests by memplan's model. ZigZag gives cycles as well, which are not compared "
        "here."
    )
    page.say(tables(records))
    page.say(
        "\\* best found, not proved optimal. Seconds are of one core of a machine that "
        "was doing other work, too."
    )
    page.say(
        "Two things are counted otherwise. ZigZag reads a partial sum before its first "
        "write, memplan does not: the figures with first reads have these in "
        "memplan's, too. And in memplan's model a tensor may pass a memory by that "
        "saves it nothing, while ZigZag's goes through all of them; that is what is "
        "left where ratios lie a little below 1."
    )
    page.say(
        "Nests such as `Fw3 Fh3 Y14 X2 X14 G184` are worth a word: sums lie in "
        "registers, and in the next memory the stripe of the input along which the "
        "window slides, between X2 and X14. As long as a buffer of the input began "
        "only where a loop over K or over the window does, memplan knew no such "
        "stripe; six depthwise layers then were above 1 on the larger memories, up "
        "to 1.026, and one on the smaller."
    )


if __name__ == "__main__":
    main()
