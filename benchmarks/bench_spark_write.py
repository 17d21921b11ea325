"""Whole jobs that write the same rows from Spark: our sink beside others.

Usage: python benchmarks/bench_spark_write.py [STORE] [--rows N] [--passes N] [--arms NAMES]
       [--one-row] [--micro-batches N] [--folder DIR] [--kafka-version VERSION]

Eight tasks read the rows from Parquet, and each arm writes them. The arms run in turn in each pass,
in one session. The rows are generated, or taken from STORE. The arms:

- discarding: a writer that takes Arrow batches and drops them, the least that Spark's API costs;
- rmqstore: our sink, into a new store;
- rmqstore-append: our sink, into a store that has a part-filled segment;
- parquet: Spark's Parquet sink with snappy, which does not fsync;
- kafka: Spark's Kafka sink, into a broker on this machine whose CPU time counts apart. It is not
  among the arms by default, because its jars are fetched.

CPU time is that of all processes of the job: the driver, the JVM and all Python workers. It does
not include the time of kernel threads that write pages back. All dirty pages are written back
before each job.

--one-row times jobs of one row. --micro-batches times a stream of that number of micro-batches, and
a batch job of the same rows. Results are lines of JSON; tables for people go to stderr.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import spark_sinks
from commit_phases import SEAMS
from kafka_broker import KafkaBroker, sink_jars
from measure import report, spark_session
from message_files import copy_messages, write_messages
from processes import JobCpu
from pyspark import __version__ as pyspark_version
from pyspark.sql import functions as sf
from write_jobs import N_QUEUES, Bench, Cost, Job, Run, begun_store

ARMS = ("discarding", "rmqstore", "rmqstore-append", "parquet", "kafka")
N_TASKS = 8
MICRO_BATCH_ROWS = 200_000
ONE_ROW_JOBS = 4  # in each pass
_JARS = Path(__file__).parents[1] / ".kafka"
_SETTINGS = {  # a task for each file
    "spark.sql.files.minPartitionNum": str(N_TASKS),
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
}
TABLE = {  # a heading: the figure and its format
    "wall s": ("seconds", ".2f"),
    "rows/s": ("rows_per_second", ",d"),
    "CPU us/row": ("cpu_us_per_row", ".2f"),
    "JVM": ("jvm_us_per_row", ".2f"),
    "Python user": ("python_user_us_per_row", ".2f"),
    "Python system": ("python_system_us_per_row", ".2f"),
    "CPU ratio": ("cpu_by_discarding", ".2f"),
    "wall ratio": ("seconds_by_discarding", ".2f"),
    "commit MB": ("commit_highest_rss_anon_mb", ".0f"),
    "broker CPU": ("broker_cpu_us_per_row", ".2f"),
    "other load": ("others_share_of_machine", ".0%"),
}
STREAM_TABLE = {
    "wall s": ("seconds", ".2f"),
    "rows/s": ("rows_per_second", ",d"),
    "CPU us/row": ("cpu_us_per_row", ".2f"),
    "wall by batch": ("seconds_by_batch", ".2f"),
    "s a micro-batch": ("seconds_per_micro_batch", ".2f"),
}


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, nargs="?", help="take the rows from this store")
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--arms", default=",".join(ARMS[:-1]), help="comma-separated; may be empty")
    parser.add_argument("--one-row", action="store_true")
    parser.add_argument("--micro-batches", type=int, default=0, metavar="N")
    parser.add_argument("--folder", type=Path, help="where generated rows are kept and jobs write")
    parser.add_argument("--kafka-version", default=pyspark_version, help="of Spark's Kafka sink")
    arguments = parser.parse_args()
    arms = [arm for arm in arguments.arms.split(",") if arm]
    unknown = set(arms) - set(ARMS)
    if unknown:
        parser.error(f"unknown arms {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    with ExitStack() as stack:
        if arguments.folder:
            arguments.folder = arguments.folder.resolve()
            arguments.folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)))
        broker, settings = None, dict(_SETTINGS)
        if "kafka" in arms:
            jars = sink_jars(_JARS, arguments.kafka_version)
            settings["spark.jars"] = ",".join(map(str, jars))
            broker = stack.enter_context(KafkaBroker(_JARS, jars, scratch / "kafka", N_QUEUES))
        spark = spark_session(settings)
        stack.callback(spark.stop)
        for source in (spark_sinks.Discarding, spark_sinks.Measured):
            spark.dataSource.register(source)
        job_cpu = stack.enter_context(JobCpu([] if broker is None else [broker.pid]))
        bench = Bench(spark, scratch, job_cpu, broker)
        if arms:
            compare_jobs(bench, arms, arguments)
        if arguments.one_row:
            compare_one_row_jobs(bench, arguments)
        if arguments.micro_batches:
            compare_streams(bench, arguments)


def input_rows(
    bench: Bench, arguments: argparse.Namespace, n_rows: int, n_files: int
) -> tuple[Path, int]:
    """Return the folder of the Parquet files and the number of rows in them."""
    name = f"rows-{n_rows}-{n_files}"
    if arguments.store:
        rows = bench.scratch / name
        n_rows = copy_messages(arguments.store, rows, n_rows, n_files)
    else:
        rows = (arguments.folder or bench.scratch) / name
        n_rows = write_messages(rows, n_rows, n_files)
    return rows / "rows", n_rows


def compare_jobs(bench: Bench, arms: Sequence[str], arguments: argparse.Namespace) -> None:
    """Compare whole jobs, and show the phases of ours."""
    rows, n_rows = input_rows(bench, arguments, arguments.rows, N_TASKS)
    frame = bench.spark.read.parquet(str(rows))
    n_tasks = frame.rdd.getNumPartitions()
    assert n_tasks == N_TASKS, f"{n_tasks} tasks read the rows"
    makers: dict[str, Callable[[], Job]] = {
        "discarding": lambda: Job(frame.write.format("discarding").mode("append").save),
        "rmqstore": lambda: bench.into_store(frame, n_rows, "store"),
        "rmqstore-append": lambda: bench.into_store(frame, n_rows, "begun", begun_store(rows)),
        "parquet": lambda: bench.into_parquet(frame),
        "kafka": lambda: bench.into_kafka(frame),
    }
    costs = bench.passes({arm: makers[arm]() for arm in arms}, arguments.passes)
    report_jobs(costs, n_rows)
    for arm in arms:
        if arm.startswith("rmqstore"):
            report_phases(arm, costs[arm], n_rows)


def report_jobs(costs: dict[str, list[Cost]], n_rows: int) -> None:
    """Report what the jobs of all arms cost."""
    lines = []
    for arm, own in costs.items():
        figures = job_figures(own, costs.get("discarding"), n_rows)
        report("spark write", arm, rows=n_rows, **figures)
        lines.append(table_line(arm, figures, TABLE))
    print_table(("arm", *TABLE), lines)


def job_figures(own: list[Cost], unit: list[Cost] | None, n_rows: int) -> dict[str, float]:
    """Return medians over passes; ratios are medians of the ratios within a pass."""

    def us_per_row(seconds: Iterable[float]) -> float:
        return median(seconds) / n_rows * 1e6

    figures = {
        "seconds": median(cost.wall for cost in own),
        "rows_per_second": round(n_rows / median(cost.wall for cost in own)),
        "cpu_us_per_row": us_per_row(cost.cpu.total for cost in own),
        "jvm_us_per_row": us_per_row(cost.cpu.jvm for cost in own),
        "python_user_us_per_row": us_per_row(cost.cpu.python_user for cost in own),
        "python_system_us_per_row": us_per_row(cost.cpu.python_system for cost in own),
    }
    if unit:
        pairs = list(zip(own, unit, strict=True))
        figures["cpu_by_discarding"] = median(a.cpu.total / b.cpu.total for a, b in pairs)
        figures["seconds_by_discarding"] = median(a.wall / b.wall for a, b in pairs)
    notes = [cost.note for cost in own if cost.note]
    if notes:
        figures["commit_highest_rss_anon_mb"] = median(note["peak"] for note in notes) / 1e6
        figures["goal_mb"] = 500
    if any(cost.broker for cost in own):
        figures["broker_cpu_us_per_row"] = us_per_row(cost.broker for cost in own)
    figures["others_share_of_machine"] = median(cost.others for cost in own)
    return figures


def report_phases(arm: str, costs: Sequence[Cost], n_rows: int) -> None:
    """Report the medians of the seconds of each phase and of its share of the job."""
    seconds: dict[str, list[float]] = {}
    for cost in costs:
        for phase, spent in job_phases(cost).items():
            seconds.setdefault(phase, []).append(spent)
    wall = [cost.wall for cost in costs]
    lines = []
    phases = {}
    for phase, spent in seconds.items():
        share = median(part / whole for part, whole in zip(spent, wall, strict=True))
        phases[phase] = {"seconds": round(median(spent), 3), "share": round(share, 3)}
        kind = "parallel" if phase == "tasks" else "serial"
        lines.append([phase, kind, f"{median(spent):.2f}", f"{share:.1%}"])
    notes = [cost.note or {} for cost in costs]
    report(
        "spark write",
        f"{arm}: phases",
        rows=n_rows,
        phases=phases,
        tasks_python_cpu_us_per_row=median(note["tasks_cpu"] for note in notes) / n_rows * 1e6,
        commit_cpu_us_per_row=median(note["commit_cpu"] for note in notes) / n_rows * 1e6,
        commit_memory_above_bare_process_mb=median(note["above"] for note in notes) / 1e6,
        not_measured=notes[0]["missing"],
    )
    print_table((f"phase of {arm}", "", "seconds", "share of job"), lines)
    for target in notes[0]["missing"]:
        print(f"not measured, because it is not there: {target}", file=sys.stderr)


def job_phases(cost: Cost) -> dict[str, float]:
    """Return the seconds of each phase of our job, in order; the commit's are inside of it."""
    note = cost.note
    assert note is not None, "our writer leaves a note"
    ended = cost.started + cost.wall
    commit = note["commit_ended"] - note["commit_started"]
    around = note["commit_started"] - note["tasks_ended"] + ended - note["commit_ended"]
    names = list(dict.fromkeys(phase for phase, _ in SEAMS))
    of_commit = {name: note["phases"].get(name, 0.0) for name in names}
    rest = {name: spent for name, spent in note["phases"].items() if name not in of_commit}
    return {
        "before the tasks": note["tasks_started"] - cost.started,
        "tasks": note["tasks_ended"] - note["tasks_started"],
        "around the commit": around,
        "commit": commit,
        **{f"commit: {name}": spent for name, spent in (of_commit | rest).items()},
    }


def compare_one_row_jobs(bench: Bench, arguments: argparse.Namespace) -> None:
    """Compare jobs of one row: their fixed cost.

    Our sink writes into a new store, into a young one that has only the rows of such jobs, and into
    a grown one with a part-filled segment. All have files of RocketMQ's default sizes.
    """
    rows, _ = input_rows(bench, arguments, arguments.rows, N_TASKS)
    row = bench.spark.range(1).coalesce(1)
    frame = row.select(
        sf.lit("Orders").alias("topic"),
        sf.lit("a key").alias("keys"),
        sf.lit("a tag").alias("tags"),
        sf.lit("x" * 250).cast("binary").alias("body"),
    )
    young, grown = bench.scratch / "young", bench.scratch / "grown"
    begun_store(rows)(grown)

    def append(target: Path) -> Run:
        return frame.write.format("rmqstore").mode("append").option("path", str(target)).save

    new = bench.scratch / "new"
    jobs = {
        "discarding": Job(frame.write.format("discarding").mode("append").save),
        "rmqstore, new store": Job(append(new), lambda: shutil.rmtree(new, ignore_errors=True)),
        "rmqstore, young store": Job(append(young)),
        "rmqstore, grown store": Job(append(grown)),
        "parquet": bench.into_parquet(frame),
    }
    costs = bench.passes(jobs, arguments.passes * ONE_ROW_JOBS)
    lines = []
    for name, own in costs.items():
        wall = median(cost.wall for cost in own)
        more = median(
            cost.wall - unit.wall for cost, unit in zip(own, costs["discarding"], strict=True)
        )
        cpu = median(cost.cpu.total for cost in own)
        report(
            "spark write, one row",
            name,
            seconds=wall,
            more_than_discarding=more,
            cpu_seconds=cpu,
            jobs=len(own),
        )
        lines.append([name, f"{wall:.3f}", f"{more:.3f}", f"{cpu:.3f}"])
    print_table(("job of one row", "wall s", "more than discarding", "CPU s"), lines)
    for store in (new, young, grown):
        shutil.rmtree(store)


def compare_streams(bench: Bench, arguments: argparse.Namespace) -> None:
    """Compare a stream of micro-batches with a batch job of the same rows."""
    wanted = MICRO_BATCH_ROWS * arguments.micro_batches
    n_files = N_TASKS * arguments.micro_batches
    rows, n_rows = input_rows(bench, arguments, wanted, n_files)
    frame = bench.spark.read.parquet(str(rows))
    source = bench.spark.readStream.schema(frame.schema)
    streamed = source.option("maxFilesPerTrigger", str(N_TASKS)).parquet(str(rows))
    n_batches = arguments.micro_batches
    jobs = {
        "batch, discarding": Job(frame.write.format("discarding").mode("append").save),
        "batch": bench.into_store(frame, n_rows, "store"),
        "stream, discarding": bench.stream_into("discarding", streamed, n_rows, n_batches),
        "stream": bench.stream_into("rmqstore", streamed, n_rows, n_batches),
    }
    costs = bench.passes(jobs, arguments.passes)
    lines = []
    for name, own in costs.items():
        wall = median(cost.wall for cost in own)
        figures: dict[str, Any] = {
            "rows": n_rows,
            "seconds": wall,
            "rows_per_second": round(n_rows / wall),
            "cpu_us_per_row": median(cost.cpu.total for cost in own) / n_rows * 1e6,
            "seconds_by_batch": median(
                cost.wall / batch.wall for cost, batch in zip(own, costs["batch"], strict=True)
            ),
        }
        if name.startswith("stream"):
            figures["seconds_per_micro_batch"] = median(
                spent for cost in own for spent in (cost.note or {})["triggers"]
            )
        report("spark write, micro-batches", name, **figures)
        lines.append(table_line(name, figures, STREAM_TABLE))
    print_table((f"micro-batches of {MICRO_BATCH_ROWS:,} rows", *STREAM_TABLE), lines)


def median(figures: Iterable[float]) -> float:
    """Return the median of figures."""
    return statistics.median(list(figures))


def table_line(
    name: str, figures: Mapping[str, Any], table: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Return the cells of a line; what was not measured is left empty."""
    cells = [format(figures[key], spec) if key in figures else "" for key, spec in table.values()]
    return [name, *cells]


def print_table(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text."""
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]
    print(file=sys.stderr)
    for line in (heading, *lines):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip(), file=sys.stderr)


if __name__ == "__main__":
    main()
