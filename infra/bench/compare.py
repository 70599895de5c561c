"""`make bench W=compare ARGS='A.json B.json'`: two runs of a benchmark with `--json`, side by side."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from infra.bench.figures import Figures, read


def main() -> None:
    parser = argparse.ArgumentParser(description="Figures of two runs of a benchmark, and their ratios.")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="two files written with --json")
    files = parser.parse_args().files
    if len(files) != 2:
        parser.error("name two files written with --json")
    before, after = map(read, files)
    print(f"{'':<60}{'A':>10}{'B':>10}{'B/A':>7}")
    print("\n".join(lines(before, after)))


def lines(before: Figures, after: Figures) -> Iterator[str]:
    """Yield a line for each figure of either run; only figures of both have a ratio."""
    for row in dict.fromkeys([*before, *after]):
        for name in dict.fromkeys([*before.get(row, {}), *after.get(row, {})]):
            a, b = (figures.get(row, {}).get(name) for figures in (before, after))
            ratio = f"{b / a:7.2f}" if a and b is not None else f"{'-':>7}"
            yield f"{row + ': ' + name:<60}{_shown(a)}{_shown(b)}{ratio}"


def _shown(figure: float | None) -> str:
    return f"{'-':>10}" if figure is None else f"{figure:10,.1f}"


if __name__ == "__main__":
    main()
