"""Options shared by the verbs that print messages: selections, and the form of bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, overload

import click
import pyarrow as pa

from rmqstore.cli.common import BYTES, repeated
from rmqstore.cli.options import Command, options
from rmqstore.cli.output import Output
from rmqstore.cli.stores import each_store, find_given, names_brokers
from rmqstore.errors import OptionError, StoreFormatError, UnsupportedFeatureError
from rmqstore.exchange.bodies import BodyForm, parse_body_form
from rmqstore.format.schema import MESSAGE
from rmqstore.query.arguments import ScanOrder, TopicArguments
from rmqstore.query.damage import Mode
from rmqstore.query.selection import is_pattern, match_topics, regular_expression
from rmqstore.read.request import parse_request
from rmqstore.source.store_source import StoreSource
from rmqstore.storage.files.remote_location import is_uri
from rmqstore.store.cluster import StoreCluster
from rmqstore.store.message_store import MessageStore
from rmqstore.store.scan import Messages, Scan

# Seconds between two polls of a store that is followed.
_PAUSE = 0.5
_REMOTE_PAUSE = 5.0
# what the progress of a scan counts
SCAN_UNITS: Final[dict[ScanOrder, str]] = {"queue": "messages", "commitlog": BYTES}

# The options that choose messages. ``ignore_log_end`` is for opening the store; :func:`scan` takes
# the others.
MESSAGES: Final = (
    "topics", "queue_ids", "offset", "starting_timestamp", "ending_timestamp", "last", "tags",
    "filter", "where", "columns", "scan", "mode", "fail_on_data_loss", "ignore_log_end",
    "include_system_topics",
)  # fmt: skip


def _chosen(
    store: Messages | None,
    *,
    topics: tuple[str, ...],
    queue_ids: tuple[int, ...],
    offset: int | None,
    include_system_topics: bool,
    where: str | None,
    **others: Any,  # noqa: ANN401 - arguments of MessageStore.scan
) -> dict[str, Any]:
    """Return what :data:`MESSAGES` choose, as arguments of a scan; see :func:`topic_arguments`."""
    offsets = offsets_from(topics, queue_ids, offset)
    chosen = topic_arguments(store, topics, queue_ids, include_system_topics)
    where = where_queue(queue_ids, where, chosen)
    return {**chosen, "starting_offsets": offsets, "where": where, **others}


def scan_chosen(store: Messages, **choice: Any) -> Scan:  # noqa: ANN401
    """Return the messages that :data:`MESSAGES` choose."""
    by_log = choice["scan"] == "commitlog"
    return store.scan(**_chosen(None if by_log else store, **choice))


class ValidRows:
    """The valid rows of a scan in mode FAILFAST, also those after damage.

    Attributes:
        damage: the first damage, None if there is none so far.
    """

    def __init__(self, read: Callable[[Mode], Scan]) -> None:
        """Plan the scan.

        Args:
            read: returns the scan in a mode.
        """
        self._read = read
        self.damage: StoreFormatError | None = None
        try:
            self._scan = read("FAILFAST")
        except StoreFormatError as err:
            self.damage = err
            self._scan = read("DROPMALFORMED")
        self.schema = self._scan.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; those before the damage are read twice."""
        n_given = 0
        try:
            for batch in self._scan:
                yield batch
                n_given += len(batch)
        except StoreFormatError as err:
            self.damage = err
            for batch in self._read("DROPMALFORMED"):
                yield batch.slice(n_given)
                n_given = max(n_given - len(batch), 0)


def source_to_follow(paths: Sequence[Path], *, ignore_log_end: bool) -> StoreSource:
    """Return the stores that the arguments of a command name.

    Raises:
        UnsupportedFeatureError: they name running brokers.
    """
    if names_brokers(paths):
        raise UnsupportedFeatureError(
            "--follow reads the files of a store; a stream of Spark follows running brokers"
        )
    return StoreSource(find_given(paths, ignore_log_end=ignore_log_end))


@contextmanager
def followed(
    source: StoreSource,
    *,
    ending_timestamp: str | None,
    scan: ScanOrder,
    **choice: Any,  # noqa: ANN401
) -> Iterator[pa.RecordBatchReader]:
    """Follow stores: the messages that :data:`MESSAGES` choose, and new ones for ever.

    They end when the process is asked to end.
    """
    if ending_timestamp is not None or scan != "queue":
        raise click.UsageError("--follow goes by queue and has no end: leave -e and --scan out")
    begins = (choice["starting_timestamp"], choice["offset"])
    if choice["last"] is not None and begins != (None, None):
        raise click.UsageError("--follow begins at --last, -b or -o: give one of them")
    arguments = _chosen(None, **choice)
    arguments["starting_offsets_by_timestamp_strategy"] = "latest"
    request = parse_request(arguments, streaming=True)
    pause = _REMOTE_PAUSE if any(is_uri(ref.path) for ref in source.stores) else _PAUSE
    with closing(source.follow(request)) as stream:
        stream.answer(lambda _: None)  # an error comes before the head of a table
        batches = repeated(stream.messages, pause)
        yield pa.RecordBatchReader.from_batches(request.schema, batches)


def offsets_from(
    topics: tuple[str, ...], queue_ids: tuple[int, ...], offset: int | None
) -> dict[str, dict[int, int]] | None:
    """Return the queue offset at which each queue starts; None if no offset is given."""
    if offset is None:
        return None
    if not topics or any(map(is_pattern, topics)) or not queue_ids:
        raise click.UsageError("-o needs -t, without a pattern, and -i")
    return {topic: dict.fromkeys(queue_ids, offset) for topic in topics}


def topic_arguments(
    store: Messages | None,
    topics: tuple[str, ...],
    queue_ids: tuple[int, ...],
    include_system_topics: bool,
) -> TopicArguments:
    """Return the topics and queues that -t, -i and --all choose, as arguments of a scan.

    Args:
        store: the store, or several, whose topics patterns choose from; None where they also
            choose topics that only records of the log name, or that are yet to come.
        topics: names and patterns; all topics if empty.
        queue_ids: ids of queues, which all topics have that are given by name.
        include_system_topics: whether system topics are chosen, which are not given by name.
    """
    chosen: TopicArguments = {"include_system_topics": include_system_topics}
    has_pattern = any(map(is_pattern, topics))
    if topics and queue_ids and not has_pattern:
        chosen["assign"] = dict.fromkeys(topics, queue_ids)
    elif store is None or not has_pattern:
        chosen |= topics_of_views(topics, include_system_topics=include_system_topics)
    else:
        if isinstance(store, MessageStore | StoreCluster):
            queues = [member.parts.store_queues for member in each_store(store)]
            known = {topic for of_store in queues for topic in of_store.known_topics()}
        else:
            known = {*store.topics()}
        chosen["subscribe"] = match_topics(
            topics, sorted(known), include_system_topics=include_system_topics
        )
    return chosen


def topics_of_views(topics: tuple[str, ...], *, include_system_topics: bool) -> TopicArguments:
    """Return the topics that -t chooses, as arguments of views, also of several stores.

    Args:
        topics: names and patterns.
        include_system_topics: whether patterns match system topics.
    """
    if any(map(is_pattern, topics)):
        pattern = regular_expression(topics, include_system_topics=include_system_topics)
        return {"subscribe_pattern": pattern}
    return {"subscribe": topics} if topics else {}


def where_queue(
    queue_ids: tuple[int, ...], where: str | None, chosen: TopicArguments
) -> str | None:
    """Return a condition, with one on queue ids if the chosen topics do not name their queues."""
    if not queue_ids or "assign" in chosen:
        return where
    condition = f"queueId IN ({', '.join(map(str, queue_ids))})"
    return condition if where is None else f"{condition} AND ({where})"


def some_bodies(command: Command) -> Command:
    """Add the options for the form of bodies; the command gets ``bodies``."""

    @wraps(command)
    def run(*, body: str | None, charset: str | None, **others: Any) -> None:  # noqa: ANN401
        command(bodies=parse_body_form(body, charset), **others)

    return options("body", "charset")(run)


def columns_shown(columns: str | None, output: Output, usual: str, *, is_one: bool) -> str | None:
    """Return the columns that were asked for, else those of a table, None for all.

    Args:
        columns: those that were asked for.
        output: where they are shown.
        usual: those of a table; the broker's name comes first if there may be several.
        is_one: whether there is one broker.
    """
    if columns is not None or not output.is_table:
        return columns
    return usual if is_one else f"brokerName,{usual}"


@overload
def columns_to_read(columns: str, bodies: BodyForm | None) -> str: ...
@overload
def columns_to_read(columns: str | None, bodies: BodyForm | None) -> str | None: ...
def columns_to_read(columns: str | None, bodies: BodyForm | None) -> str | None:
    """Return the columns to read, without bodies that are not written."""
    if bodies is None or bodies.name != "none":
        return columns
    names = MESSAGE.names if columns is None else columns.split(",")
    left = ",".join(name for name in names if name.strip() != "body")
    if not left:
        raise OptionError("--body none: leaves none of the --columns")
    return left


def in_form(
    reader: pa.RecordBatchReader | Scan | ValidRows, bodies: BodyForm | None
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Return the columns and the batches of messages, with bodies in a form."""
    if bodies is None:
        return reader.schema, reader
    return bodies.schema(reader.schema), bodies.batches(reader)
