"""What the options of a read or a stream mean together, as checked values.

Their names, parsers and defaults are in ``rmqstore.query.options``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from pyspark_rmqstore.option_names import SPARK_OWN, option_names, without_kafka_own
from pyspark_rmqstore.store_options import MESSAGES, parse_stores, zone_of
from pyspark_rmqstore.triggers import TriggerLimits
from rmqstore.errors import OptionError, UnsupportedFeatureError
from rmqstore.query.arguments import ScanArguments
from rmqstore.query.options import ALL_READ_OPTIONS, KAFKA, GivenOptions
from rmqstore.read.request import OF_SCHEMA, ScanRequest, parse_request, returned_schema
from rmqstore.read.split import Limits
from rmqstore.read.views.schema import ALLOWED
from rmqstore.storage.files.remote_location import is_live

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore.source.continuation import Tail
    from rmqstore.source.stream import Stream
    from rmqstore.source.tasks import Task

logger = logging.getLogger(__name__)

# Options of Spark's Kafka source for streams, which it ignores in a batch.
_TRIGGERS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The columns that the options ask for, validated.

    Attributes:
        named: those that option ``columns`` names; None if it names none, or ``kafka``.
        of_messages: those of a read; None if they are those of Spark's Kafka source.
        include_headers: whether Kafka's have headers.
    """

    named: tuple[str, ...] | None
    of_messages: pa.Schema | None
    include_headers: bool

    @property
    def is_kafka(self) -> bool:
        """Whether the columns are those of Spark's Kafka source."""
        return self.of_messages is None


class Source(Protocol):
    """Where messages are read: stores of files, or running brokers."""

    def plan(self, request: ScanRequest, limits: Limits) -> Sequence[Task]: ...
    def follow(self, request: ScanRequest) -> Stream[Tail]: ...


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read, validated.

    Attributes:
        columns: those that the options ask for.
        source: what is read.
        request: what is asked for; its columns are all of a message.
        limits: those of tasks.
    """

    columns: ColumnOptions
    source: Source
    request: ScanRequest
    limits: Limits


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream, of its reads and of its triggers, validated."""

    read: ReadOptions
    triggers: TriggerLimits


@option_names()
def parse_column_options(options: Mapping[str, str]) -> ColumnOptions:
    """Return the columns that options ask for; raises as :func:`parse_read_options` does."""
    given = _options_of_messages(options)
    given.refuse_contradictions("batch", "stream")
    return _column_options(given)


def _column_options(given: GivenOptions) -> ColumnOptions:
    is_kafka = given["columns"] == KAFKA
    named = None if is_kafka else given["columns"]
    schema = returned_schema(named, **given.arguments(OF_SCHEMA))
    return ColumnOptions(named, None if is_kafka else schema, given["includeHeaders"])


@option_names()
def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
        UnsupportedFeatureError: an option requests what is not supported yet.
    """
    given = _options_of_messages(options)
    misplaced = [option.name for option in given.outside("batch")]
    is_kafka = (given.text("columns") or "").strip().lower() == KAFKA
    if is_kafka and (ignored := [name for name in _TRIGGERS if name in given]):
        logger.warning(
            "%s: ignored in a batch read, as by Spark's Kafka source", ", ".join(ignored)
        )
        misplaced = [name for name in misplaced if name not in ignored]
    if misplaced:
        raise OptionError(
            f"{', '.join(misplaced)}: for streams only; "
            "use readStream, or leave it out of a batch read"
        )
    return _read_options(given, streaming=False)


@option_names()
def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Parse the options of a stream; raises as :func:`parse_read_options` does."""
    given = _options_of_messages(options)
    if misplaced := [option.name for option in given.outside("stream")]:
        raise UnsupportedFeatureError(
            f"{', '.join(misplaced)}: a stream follows queues; look messages up in a batch read"
        )
    read = _read_options(given, streaming=True)
    return StreamOptions(read, TriggerLimits.parse(given, given["maxBytesPerTrigger"]))


def _read_options(given: GivenOptions, *, streaming: bool) -> ReadOptions:
    given.refuse_contradictions("stream" if streaming else "batch")
    chosen = _column_options(given)
    with zone_of(given["timeZone"]):
        request = parse_request(given.arguments(ScanArguments.__annotations__), streaming=streaming)
    if not request.is_by_queue:
        request.selection.require_by_log()
    limits = Limits(
        given["maxBytesPerPartition"], given["maxRecordsPerPartition"], given["minPartitions"]
    )
    source: Source
    if is_live(given["path"]):
        source = import_module("pyspark_rmqstore.live.source").parse_source(given, chosen.named)
    else:
        from rmqstore.source.store_source import StoreSource

        source = StoreSource(parse_stores(given))
    return ReadOptions(chosen, source, request, limits)


def _options_of_messages(options: Mapping[str, str]) -> GivenOptions:
    """Return the options by their documented names.

    Raises:
        OptionError: one is unknown, or is for views.
    """
    given = GivenOptions(without_kafka_own(options), ALL_READ_OPTIONS, SPARK_OWN)
    view = given.text("view") or MESSAGES
    if view.lower() != MESSAGES:
        raise OptionError(f"view {view!r}: views are for batch reads; a stream reads messages")
    of_views = [option for option in given.outside("batch") if "stream" not in option.scope]
    if of_views:
        views = ", ".join(ALLOWED[of_views[0].argument])
        names = ", ".join(option.name for option in of_views)
        raise OptionError(f"{names}: for view {views} only")
    return given
