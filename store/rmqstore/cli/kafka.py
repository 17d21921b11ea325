"""The verbs about log directories of Kafka: kafka stat, dump, get, groups, verify."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import click
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.dump import (
    LOGS,
    PartitionFile,
    batch_rows,
    file_rows,
    file_schema,
    parse_file,
    stored_rows,
)
from kafkalog.format.consumer_offsets import Decode, decode_group_record, decode_transaction_record
from kafkalog.opening import LISTED, LogDirs, names_in_storage, open_log_dirs
from kafkalog.partition import Partition
from kafkalog.scan import ISOLATION_LEVELS, READ_UNCOMMITTED
from kafkalog.storage.names import (
    METADATA_TOPIC,
    STATES,
    STRAY,
    TopicPartition,
    numbers_by_topic,
    parse_folder,
)
from kafkalog.verify import PARTITIONS, partition_row, verify as verify_partitions, verify_file
from rmqstore.cli.common import counted, ends_clearly
from rmqstore.cli.options import FLAGS, REPEATED, Command, Flag, options
from rmqstore.cli.output import Output, gives_findings, gives_rows, show_findings
from rmqstore.cli.stores import given_options
from rmqstore.cli.verbs import Verbs, main
from rmqstore.errors import Finding, MessageNotFoundError, OptionError
from rmqstore.exchange.json_rows import JSON_TEXT, json_rows
from rmqstore.query.damage import Mode
from rmqstore.query.selection import nearest_topics
from rmqstore.query.times import optional_timestamp
from rmqstore.storage.files.storage import Storage

_WHOLE_BATCHES: Final = "with all of their batch"
_HEADERS: Final = "headers"
_METADATA_BYTES: Final = (
    "records of the cluster's metadata are shown as bytes; what they say shows"
    " kafka-dump-log.sh --cluster-metadata-decoder"
)
_DECODERS: Final[dict[str, tuple[str, Decode]]] = {
    "offsets_decoder": ("__consumer_offsets", decode_group_record),
    "transaction_log_decoder": ("__transaction_state", decode_transaction_record),
}


@main.group(cls=Verbs)
def kafka() -> None:
    """Read log directories of Apache Kafka, without a broker. Nothing is changed.

    PATH... are the log directories of one broker (log.dirs), or one partition folder, and may be
    URIs. Without a clean stop of the broker a log ends where a recovery would end it.

    Examples:
        rmqstore kafka stat /data/kafka/logs
        rmqstore kafka dump /data/kafka/logs -t G -n 10
    """


_paths = click.argument("paths", metavar="PATH...", type=click.Path(), nargs=-1, required=True)
_FLAGS: Final = FLAGS | {
    "partitions": Flag(
        "-p --partition", "only partitions with this number", more=REPEATED,
        type=click.IntRange(min=0), multiple=True,
    ),
    "start_offset": Flag("--start-offset", "from this offset on", type=int),
    "end_offset": Flag("--end-offset", "up to, but not including, this offset", type=int),
    "begin": Flag(
        "-b --begin", "from the offset on that a broker gives for this time",
        argument="starting_timestamp", metavar="TIME",
    ),
    "end": Flag(
        "-e --end", "up to the offset that a broker gives for this time",
        argument="ending_timestamp", metavar="TIME",
    ),
    "isolation_level": Flag(
        "--isolation-level",
        "with read_committed nothing of transactions that were aborted or are open",
        type=click.Choice(ISOLATION_LEVELS), default=READ_UNCOMMITTED,
    ),
    "batches": Flag("--batches", "batches in place of records, markers as well", is_flag=True),
    "deep": Flag(
        "--deep",
        "records as they are stored: markers and aborted ones as well, sizes, sequence numbers",
        is_flag=True,
    ),
    "offsets_decoder": Flag(
        "--offsets-decoder",
        "decode records of __consumer_offsets: group offsets and metadata", is_flag=True,
    ),
    "transaction_log_decoder": Flag(
        "--transaction-log-decoder", "decode records of __transaction_state", is_flag=True,
    ),
}  # fmt: skip
_options = partial(options, table=_FLAGS)


def log_dirs(command: Command) -> Command:
    """Add the argument that names log directories, and how to reach them, to a command."""
    return _paths(options("storage_options")(command))


def _open(paths: tuple[str, ...]) -> LogDirs:
    return open_log_dirs(*paths, storage_options=given_options().storage_options)


def _choose(
    opened: LogDirs,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    *,
    include_system_topics: bool,
) -> dict[TopicPartition, Partition]:
    """Return the partitions that the options choose."""
    known_topics = opened.topics()
    missing = sorted({*topics} - {*known_topics})
    if missing:
        known = nearest_topics(missing, known_topics, listed=LISTED)
        raise OptionError(f"-t/--topic: there is no topic {', '.join(missing)}; {known}")
    takes_all = topics or include_system_topics
    of_topics = opened.partitions if takes_all else opened.default_partitions
    numbers = {key.partition for key in of_topics if _is_chosen(key, topics, ())}
    for number in partitions:
        if number not in numbers:
            raise OptionError(f"-p/--partition: no topic that is read has a partition {number}")
    return {key: log for key, log in of_topics.items() if _is_chosen(key, topics, partitions)}


def _is_chosen(key: TopicPartition, topics: tuple[str, ...], partitions: tuple[int, ...]) -> bool:
    """Return whether options choose a partition; without topics or numbers, they choose any."""
    return (not topics or key.topic in topics) and (not partitions or key.partition in partitions)


def chooses_partitions(command: Command) -> Command:
    """Add the options that choose partitions to a command."""
    of_topics = _options("topics", "partitions", "include_system_topics", topics=REPEATED)
    return log_dirs(of_topics(command))


@kafka.command()
@chooses_partitions
@_options("quiet")
@ends_clearly
@gives_rows()
def stat(paths: tuple[str, ...], output: Output, **choice: Any) -> None:  # noqa: ANN401 - of _choose
    """Show partitions: offsets, last stable offset, high watermark, segments, bytes.

    Column recovery says what a broker that starts would cut from the end of a log.

    Examples:
        rmqstore kafka stat /data/kafka/logs --all
        rmqstore kafka stat /data/kafka/logs/G-0 --json
    """
    with _open(paths) as opened:
        chosen = _choose(opened, **choice).values()
        rows = map(partition_row, chosen)
        shown = counted(rows, "reading", len(chosen), unit="partitions", stays=False)
        output.write(PARTITIONS, list(shown))


@kafka.command()
@chooses_partitions
@_options(
    "start_offset", "end_offset", "begin", "end", "isolation_level", "mode", "columns", "batches",
    "deep", "offsets_decoder", "transaction_log_decoder", "quiet", mode=_WHOLE_BATCHES,
)  # fmt: skip
@ends_clearly
@gives_rows("jsonl")
def dump(
    paths: tuple[str, ...],
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    include_system_topics: bool,
    batches: bool,
    deep: bool,
    columns: str | None,
    output: Output,
    **choice: Any,  # noqa: ANN401
) -> None:
    """Write records, or with --batches the batches that they are in.

    Partitions come one after the other, each in the order of its offsets. Times are those that a
    broker searches by, of the first record in offset order that is not earlier.

    PATH... may also be files of partition folders, all of one kind: a .log gives its batches, or
    records with --deep, and so does a snapshot of the cluster's metadata (.checkpoint); .index,
    .timeindex, .txnindex and .snapshot give their entries. Records of the cluster's metadata are
    shown as bytes.

    Examples:
        rmqstore kafka dump /data/kafka/logs -t G --isolation-level read_committed
        rmqstore kafka dump /data/kafka/logs -t G -p 0 --batches
    """
    topic = None
    decode = None
    for name, decoder in _DECODERS.items():
        if choice.pop(name):
            topic, decode = decoder
    deep |= decode is not None
    if topic is not None and not topics:
        topics = (topic,)
    if batches and deep:
        raise OptionError("--batches and --deep: one of them")
    if columns is not None and (batches or deep):
        raise OptionError(f"--columns: {'--batches' if batches else '--deep'} gives all columns")
    if any(parse_file(path) is not None for path in paths):
        kind, files, storage = _files_of(paths)
        if deep and any(file.topic_partition[0] == METADATA_TOPIC for file in files):
            click.echo(_METADATA_BYTES, err=True)
        of_files = (file_rows(storage, file, decode, deep=deep) for file in files)
        output.write(file_schema(kind, decode, deep=deep), chain.from_iterable(of_files))
        return
    with _open(paths) as opened:
        chosen = _choose(opened, topics, partitions, include_system_topics=include_system_topics)
        bounds = {key: _bounds(partition, choice) for key, partition in chosen.items()}
        rows: Iterable[pa.RecordBatch]
        if batches or deep:
            schema = file_schema(LOGS[0], decode, deep=deep)
            read = partial(stored_rows, decode=decode) if deep else batch_rows
            rows = chain.from_iterable(read(chosen[key], *span) for key, span in bounds.items())
        else:
            scan = opened.scan(
                assign=numbers_by_topic(chosen),
                starting_offsets={key: start for key, (start, _) in bounds.items()},
                ending_offsets={key: end for key, (_, end) in bounds.items()},
                columns=columns,
                isolation_level=choice["isolation_level"],
                mode=choice["mode"],
            )
            schema, rows = _readable(scan.schema, scan, output)
        if not output.is_on_terminal:
            rows = counted(rows, "reading", unit="rows")
        output.write(schema, rows)


def _files_of(paths: tuple[str, ...]) -> tuple[str, list[PartitionFile], Storage]:
    """Return files of one kind by their paths, and their storage."""
    given = click.get_current_context()
    chosen = [
        option
        for option in ("topics", "partitions", "start_offset", "end_offset", "begin", "end")
        if given.params.get(option)
    ]
    if chosen:
        refused = ", ".join(name.replace("_", "-") for name in chosen)
        raise OptionError(f"{refused}: files are shown as a whole; name log directories")
    names, storage = names_in_storage(paths, given_options().storage_options)
    files = [parse_file(name) for name in names]
    kinds = {"folder" if file is None else file.kind for file in files}
    if len(kinds) > 1:
        text = ", ".join(sorted(kinds))
        raise OptionError(f"PATH: files of one kind at a time, and no folders; got {text}")
    (kind,) = kinds
    return kind, [file for file in files if file is not None], storage


def _bounds(partition: Partition, choice: Mapping[str, Any]) -> tuple[int, int]:
    """Return the offsets of a partition between which the options of ``dump`` read it."""
    start_ms = optional_timestamp("starting_timestamp", choice["begin"])
    end_ms = optional_timestamp("ending_timestamp", choice["end"])
    first, last = partition.offsets_between(start_ms, end_ms)
    if choice["start_offset"] is not None:
        first = max(first, choice["start_offset"])
    if choice["end_offset"] is not None:
        last = min(last, choice["end_offset"])
    return min(first, partition.end_offset), max(last, partition.start_offset)


def _readable(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: Output
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Return rows with headers as JSON, or unchanged for a format with lists of bytes."""
    if output.format_name == "parquet" or _HEADERS not in schema.names:
        return schema, batches
    at = schema.names.index(_HEADERS)
    shown = schema.set(at, pa.field(_HEADERS, pa.string(), metadata=JSON_TEXT))

    def with_json(batch: pa.RecordBatch) -> pa.RecordBatch:
        lists = batch.column(at)
        entries = iter(json_rows(pa.RecordBatch.from_struct_array(lists.flatten())))
        headers: list[str | None] = []
        for length in pc.list_value_length(lists).to_pylist():
            text = None
            if length is not None:
                text = orjson.dumps([*islice(entries, length)]).decode()
            headers.append(text)
        return batch.set_column(at, shown.field(at), pa.array(headers, pa.string()))

    return shown, map(with_json, batches)


@kafka.command()
@log_dirs
@click.argument("partition")
@click.argument("offset", type=int)
@ends_clearly
@gives_rows("pretty")
def get(paths: tuple[str, ...], partition: str, offset: int, output: Output) -> None:
    """Write the record at OFFSET of PARTITION, which is named as its folder: TOPIC-NUMBER.

    Examples:
        rmqstore kafka get /data/kafka/logs G-0 17
        rmqstore kafka get /data/kafka/logs G-0 17 --format csv
    """
    name = parse_folder(partition)
    if name is None:
        raise OptionError(f"{partition}: name a partition as its folder is named, such as Orders-0")
    with _open(paths) as opened:
        key = name.topic_partition
        log = opened.partition(*key)
        if not log.start_offset <= offset < log.end_offset:
            raise MessageNotFoundError(
                f"{partition} has no record at offset {offset}: it has those from"
                f" {log.start_offset} up to, but not including, {log.end_offset}"
            )
        scan = opened.scan(
            assign={key.topic: [key.partition]},
            starting_offsets={key: offset},
            ending_offsets={key: offset + 1},
        )
        found = scan.to_arrow()
        if not len(found):
            raise MessageNotFoundError(
                f"{partition} has no record at offset {offset}: it was compacted away, is a marker,"
                " or is not written yet"
            )
        output.write(*_readable(found.schema, found.to_batches(), output))


@kafka.command()
@log_dirs
@_options("mode", mode=_WHOLE_BATCHES)
@ends_clearly
@gives_rows()
def groups(paths: tuple[str, ...], mode: Mode, output: Output) -> None:
    """Show the committed offsets of consumer groups, from __consumer_offsets.

    Examples:
        rmqstore kafka groups /data/kafka/logs
        rmqstore kafka groups /data/kafka/logs --format csv
    """
    with _open(paths) as opened:
        output.write_table(opened.consumer_groups(mode=mode))


def _folders_aside(
    opened: LogDirs, topics: tuple[str, ...], partitions: tuple[int, ...]
) -> list[Finding]:
    """Warn of folders that are not read; return findings for those that no broker opens."""
    findings = []
    for log_dir in opened.log_dirs:
        for name, parsed in log_dir.others.items():
            if not _is_chosen(parsed.topic_partition, topics, partitions):
                continue
            folder = f"{log_dir.path}/{name}"
            text = STATES[parsed.state]
            if parsed.state == STRAY:
                findings.append(Finding("folder", folder, text))
            else:
                click.echo(f"{folder}: not checked: {text}", err=True)
    return findings


@kafka.command()
@chooses_partitions
@ends_clearly
@gives_findings
def verify(
    paths: tuple[str, ...],
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    include_system_topics: bool,
    output: Output,
) -> None:
    """List damage: wrong CRCs, broken chains, offsets that fall, indexes that lead elsewhere.

    Time and transaction indexes and producer snapshots are compared with the log as well. What a
    recovery would cut from the end of a log is listed, too, and partitions that the checkpoints of
    a directory name and that it does not hold, segments that are gone from a log by what lies
    beside it, and folders that a broker put aside (-stray). Folders that a broker is still busy
    with (-delete, -future) are named. The exit code is 1 if there is anything.

    PATH... may also be .log files of partition folders and snapshots of the cluster's metadata
    (.checkpoint), which are checked by themselves.

    Examples:
        rmqstore kafka verify /data/kafka/logs
        rmqstore kafka verify /data/kafka/logs -t G --json
    """
    if any(parse_file(path) is not None for path in paths):
        kind, files, storage = _files_of(paths)
        if kind not in LOGS:
            raise OptionError(
                f"{paths[0]}: of files only those of logs are checked by themselves; indexes and"
                " snapshots are compared with the log of their partition folder"
            )
        show_findings([finding for file in files for finding in verify_file(storage, file)], output)
        click.echo(f"{', '.join(paths)}: {len(files)} files are valid", err=True)
        return
    with _open(paths) as opened:
        chosen = _choose(opened, topics, partitions, include_system_topics=include_system_topics)
        gone = {
            key: path for key, path in opened.missing.items() if _is_chosen(key, topics, partitions)
        }
        text = "partition {} is gone: the checkpoints of the directory name it"
        findings = [Finding("log", path, text.format(key)) for key, path in gone.items()]
        findings += verify_partitions(chosen.values())
        findings += _folders_aside(opened, topics, partitions)
        parts = []
        if not topics and not partitions:
            others = sorted({key.topic for key in opened.partitions if key not in chosen})
            if others:
                parts.append(f"{', '.join(others)} (--all checks Kafka's own topics)")
            if any(log_dir.has_metadata for log_dir in opened.log_dirs):
                parts.append(f"{METADATA_TOPIC}, which is not read as a partition: name its files")
    left_out = "; ".join(parts)
    named = ", ".join(paths)
    if not chosen and not findings:
        reason = f"left out: {left_out}" if left_out else "there is no partition"
        raise OptionError(f"{named}: nothing was checked; {reason}")
    if left_out:
        click.echo(f"{named}: not checked: {left_out}", err=True)
    show_findings(findings, output)
    click.echo(f"{named}: {len(chosen)} partitions are valid", err=True)
