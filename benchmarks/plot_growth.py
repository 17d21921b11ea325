"""Draws what bench_growth.py measured, and prints it as the tables of docs/large.md.

Usage: python benchmarks/plot_growth.py RESULTS SVG
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

NAMES = {
    "queues": "queues",
    "segments": "files of the log",
    "index-files": "files of the index",
    "groups": "consumer groups",
    "stores": "stores",
    "tasks": "tasks over 80 queues",
    "tasks-many-queues": "tasks over 4,000 queues",
    "messages": "messages",
}
FACTS = {
    "tasks": "tasks",
    "cold_bytes": "MB read of a cold disk",
    "peak_bytes": "peak memory of planning, MB",
    "pickled_bytes": "tasks as sent to executors, MB",
}
COLUMNS = 2
PANEL_INCHES = (5.4, 4.0)


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw a panel for each dimension, with a curve for each operation."""
    mpl.rcParams["svg.hashsalt"] = "growth"  # the same figures give the same file
    dimensions = [name for name in NAMES if any(one["dimension"] == name for one in results)]
    rows = -(-len(dimensions) // COLUMNS)
    size = (PANEL_INCHES[0] * COLUMNS, PANEL_INCHES[1] * rows)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=size, squeeze=False, layout="constrained")
    operations = list(dict.fromkeys(one["operation"] for one in results if "cpu" in one))
    colours = dict(zip(operations, plt.get_cmap("tab20").colors, strict=False))
    for axes, name in zip(grid.flat, dimensions, strict=False):
        curves = [one for one in results if one["dimension"] == name and "cpu" in one]
        draw_panel(axes, name, curves, colours)
    empty = grid.flat[len(dimensions) :]
    for axes in empty:
        axes.set_axis_off()
    handles = [
        plt.Line2D([], [], color=colours[name], marker="o", label=name) for name in operations
    ]
    if len(empty):
        empty[0].legend(handles=handles, loc="center", fontsize="small", frameon=False)
    else:
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def draw_panel(
    axes: Axes, name: str, curves: list[dict[str, Any]], colours: dict[str, Any]
) -> None:
    """Draw the curves of one dimension, and what proportional growth would be."""
    for curve in curves:
        axes.plot(curve["sizes"], curve["cpu"], marker="o", color=colours[curve["operation"]])
    sizes = curves[0]["sizes"]
    lowest = min(min(curve["cpu"]) for curve in curves)
    proportional = [lowest * size / sizes[0] for size in sizes]
    axes.set(xscale="log", yscale="log", xlabel=NAMES[name], ylabel="CPU seconds")
    limits = axes.get_ylim()
    axes.plot(sizes, proportional, color="grey", linestyle=":")
    axes.set_ylim(limits)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)


def tables(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table for each dimension."""
    lines: list[str] = []
    for name, title in NAMES.items():
        chosen = [one for one in results if one["dimension"] == name]
        if not chosen:
            continue
        sizes = chosen[0]["sizes"]
        lines += [f"## {title.capitalize()}", ""]
        heads = [f"{size:,}" for size in sizes]
        lines += row([f"CPU seconds by {title}", *heads, "exponent at the end"])
        lines += [f"| --- |{' ---: |' * (len(sizes) + 1)}"]
        for one in chosen:
            if "cpu" in one:
                cells = [figure(value) for value in one["cpu"]]
                lines += row([one["operation"], *cells, f"{one['exponents'][-1]:.2f}"])
        for fact, text in FACTS.items():
            for one in chosen:
                if fact in one:
                    unit = 1 if fact == "tasks" else 1e6
                    cells = [figure(value / unit) for value in one[fact]]
                    lines += row([text, *cells, ""])
        lines += [""]
    return "\n".join(lines)


def row(cells: list[str]) -> list[str]:
    """Return a row of a table."""
    return [f"| {' | '.join(cells)} |"]


def figure(value: float) -> str:
    """Return a figure with two digits that count."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def main() -> None:
    """Draw the plot, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="what bench_growth.py printed")
    parser.add_argument("svg", type=Path)
    arguments = parser.parse_args()
    results = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    draw(results, arguments.svg)
    print(tables(results))


if __name__ == "__main__":
    main()
