"""Compute the tables and draw the pictures of docs/blocking.md; takes some minutes.

    python scripts/paper_blocking.py [--page docs/blocking.md]

They are the figures 3 to 9 of A Systematic Approach to Blocking Convolutional Neural
Networks (Yang et al., 2016) by memplan's model. The page's text stays as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import blocking_figures as figures
from bench import blocking_machines as machines
from bench.blocking_page import Page


def main() -> None:
    """Replace the page's tables and the pictures beside it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", type=Path, default=Path("docs/blocking.md"))
    args = parser.parse_args()
    page = Page(args.page)
    for section in (
        figures.figures_3_and_4,
        figures.figure_5,
        figures.figure_6,
        figures.figure_7,
        figures.figure_8,
        machines.figure_9,
        machines.mappings,
        machines.networks,
        figures.windows_apart,
    ):
        section(page)
    page.write()
    print(f"wrote {args.page}")


if __name__ == "__main__":
    main()
