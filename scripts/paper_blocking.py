"""The blocking paper's figures 3 to 9 and its claims, as memplan's model gives them.

    python scripts/paper_blocking.py [--output docs]

Writes `blocking.md`, and the figures beside it; takes some minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import blocking_figures as figures
from bench.blocking_claims import claims
from bench.blocking_networks import network_rows
from bench.blocking_page import Page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    page = Page(args.output)
    page.say("# Blocking CNNs: the paper's figures")
    page.say(
        "What *A Systematic Approach to Blocking Convolutional Neural Networks* (Yang "
        "et al., 2016) reports, and what memplan's model gives for the same layers. "
        "Every number here is written by `scripts/paper_blocking.py`. Nests have "
        "any extents, and the window's loops anywhere, where nothing else is said; "
        "optimal means optimal among all of these. The model counts each level's own "
        "halo, 2n - 1 accesses for n updates of a sum, and the first fetch from main "
        "memory, none of which equation 1 does (`memplan blocking evaluate --counting "
        "paper` counts as the paper says). Energies are its Table 3, words 256, 512 "
        "and 256 bits, elements of 16 bits, a multiplication 1 pJ, the datapath 16 x "
        "16 channels. Other bits and energies, and bandwidths, are in [hierarchies.md]"
        "(hierarchies.md), cycles in [latency.md](latency.md)."
    )
    figures.figures_3_and_4(page)
    figures.figure_5(page)
    figures.figure_6(page)
    figures.figure_7(page)
    figures.figure_8(page)
    figures.figure_9(page)
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
    page.say("## Networks on one hierarchy (section 3.6)")
    page.say(
        "Total energy of all layers, convolutions and fully connected ones, on "
        "memories common to them. The paper's method takes the 10 best designs of "
        "each layer and what these have in common; here it takes twice as many, "
        "and so on, where they have nothing. Ours starts from its result, and "
        "from others. Each layer's nest, but the last one's, whose 1,000 channels the "
        "datapath does not divide, is proved optimal on the memories among nests "
        "whose extents divide each other and whose window is in one piece; the "
        "memories' sizes are not proved."
    )
    page.table(
        "network | budget | paper's method, mJ | memplan, mJ | ratio | seconds",
        network_rows(),
    )
    page.say("## Headlines")
    page.table("the paper | here | agrees", list(claims()))
    page.write()
    print(f"wrote {args.output / 'blocking.md'}")


if __name__ == "__main__":
    main()
