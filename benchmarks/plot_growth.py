"""Puts what bench_growth.py measured into docs/performance.md: tables, plot and estimate.

Usage: python benchmarks/plot_growth.py RESULTS PAGE

The plot is drawn beside the page. The page has marks between which the tables stand.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

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
        headers = [f"{size:,}" for size in sizes]
        lines += row([f"CPU seconds by {title}", *headers, "exponent at the end"])
        lines += [f"| --- |{' ---: |' * (len(sizes) + 1)}"]
        for one in chosen:
            if "cpu" in one:
                cells = [figure(value) for value in one["cpu"]]
                lines += row([one["operation"], *cells, f"{one['exponents'][-1]:.2f}"])
        for fact, text in FACTS.items():
            for one in chosen:
                if fact in one:
                    if fact == "tasks":
                        lines += row([text, *(f"{value:,}" for value in one[fact]), ""])
                        continue
                    cells = [figure(value / 1e6) for value in one[fact]]
                    lines += row([text, *cells, ""])
        lines += [""]
    return "\n".join(lines).rstrip()


def row(cells: list[str]) -> list[str]:
    """Return a row of a table."""
    return [f"| {' | '.join(cells)} |"]


def figure(value: float) -> str:
    """Return a figure with two digits that count."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


class Cluster(NamedTuple):
    """What the estimate is for. All brokers are alike."""

    brokers: int = 30
    broker_bytes: float = 10e12
    message_bytes: int = 1_000
    queues: int = 4_000  # of a broker
    row_seconds: float = 2.41e-6  # CPU of a row read through Spark, from docs/performance.md
    disk_bytes_per_second: float = 500e6  # of a broker


class Slopes(NamedTuple):
    """What planning takes for each thing more, by the two ends of a measured curve."""

    queue_seconds: float
    queue_cold_bytes: float
    range_seconds: float  # a range is the part of one queue that one task reads
    range_bytes: float
    range_pickled_bytes: float
    file_seconds: float  # of a plan by log, for each file of the log


def slopes(results: list[dict[str, Any]]) -> Slopes:
    """Return the slopes of the measured curves."""
    by_name = {(one["dimension"], one["operation"]): one for one in results}
    facts = by_name["tasks", "Spark plan, facts"]
    ranges = [n_tasks * 80 for n_tasks in facts["tasks"]]
    queues = by_name["queues", "Spark plan"]
    queue_facts = by_name["queues", "Spark plan, facts"]
    files = by_name["segments", "Spark plan by log"]
    return Slopes(
        slope(queues["sizes"], queues["cpu"]),
        slope(queues["sizes"], queue_facts["cold_bytes"]),
        slope(ranges, by_name["tasks", "Spark plan"]["cpu"]),
        slope(ranges, facts["peak_bytes"]),
        slope(ranges, facts["pickled_bytes"]),
        slope(files["sizes"], files["cpu"]),
    )


def slope(sizes: list[int], values: list[float]) -> float:
    """Return how much the values rise for each unit of size, from the first to the last."""
    return max(values[-1] - values[0], 0) / (sizes[-1] - sizes[0])


def estimate(results: list[dict[str, Any]], cluster: Cluster) -> str:
    """Return the estimate for a cluster, as Markdown."""
    each = slopes(results)
    n_queues = cluster.brokers * cluster.queues
    n_bytes = cluster.brokers * cluster.broker_bytes
    n_files = n_bytes / 2**30
    headers = ["planning, one process", "tasks", "CPU", "bytes read of a cold disk"]
    lines = row([*headers, "peak memory", "memory of the tasks"])
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    for text, size in {"128m": 128 << 20, "1g": 1 << 30, "16g": 16 << 30}.items():
        n_tasks = n_bytes / size
        n_ranges = n_tasks * cluster.queues
        cells = [
            f"by queue, `maxBytesPerPartition={text}`",
            f"{n_tasks:,.0f}",
            duration(n_queues * each.queue_seconds + n_ranges * each.range_seconds),
            f"{figure(n_queues * each.queue_cold_bytes / 1e9)} GB",
            f"{figure(n_ranges * each.range_bytes / 1e9)} GB",
            f"{figure(n_ranges * each.range_pickled_bytes / 1e9)} GB",
        ]
        lines += row(cells)
    # beside the starts of files, a plan by log knows a few thousand places where it may cut
    lines += row(["by log", f"{n_files:,.0f}", duration(n_files * each.file_seconds), "", "", ""])
    lines += ["", "| reading all columns of all messages | CPU alone | disks alone |"]
    lines += ["| --- | ---: | ---: |"]
    cpu_seconds = n_bytes / cluster.message_bytes * cluster.row_seconds
    disk_seconds = cluster.broker_bytes / cluster.disk_bytes_per_second
    for cores in (32, 320, 3_200):
        lines += row([f"{cores:,} cores", duration(cpu_seconds / cores), duration(disk_seconds)])
    return "\n".join([*slope_table(each), "", *lines])


def slope_table(each: Slopes) -> list[str]:
    """Return a table of the slopes."""
    lines = row(["measured, for each thing more", "CPU", "cold disk", "peak memory", "in the task"])
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    of_queue = [f"{each.queue_seconds * 1e6:.0f} us", f"{each.queue_cold_bytes / 1e3:.1f} kB"]
    lines += row(["queue", *of_queue, "", ""])
    of_range = [f"{each.range_bytes:.0f} bytes", f"{each.range_pickled_bytes:.0f} bytes"]
    lines += row(["queue in a task", f"{each.range_seconds * 1e6:.1f} us", "", *of_range])
    lines += row(["file of the log, by log", f"{each.file_seconds * 1e6:.0f} us", "", "", ""])
    return lines


def duration(seconds: float) -> str:
    """Return seconds in a unit that fits."""
    if seconds < 120:
        return f"{figure(seconds)} s"
    return f"{figure(seconds / 60)} min" if seconds < 7200 else f"{figure(seconds / 3600)} h"


def put(text: str, mark: str, block: str) -> str:
    """Return a page with a block put between the two marks of a name."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    replaced, n = re.subn(pattern, lambda _: f"{begin}\n\n{block}\n\n{end}", text, flags=re.DOTALL)
    assert n == 1, mark
    return replaced


def main() -> None:
    """Draw the plot, and write tables and estimate into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="what bench_growth.py printed")
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    results = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    draw(results, arguments.page.with_name("growth.svg"))
    page = put(arguments.page.read_text(), "tables", tables(results))
    arguments.page.write_text(put(page, "estimate", estimate(results, Cluster())))


if __name__ == "__main__":
    main()
