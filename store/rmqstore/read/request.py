"""What a scan asks for: one value, for Python, Spark and commands alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from rmqstore.errors import OptionError
from rmqstore.format.schema import ALL_COLUMNS, PENDING, VERBATIM
from rmqstore.progress import Advance, ignore_progress
from rmqstore.query.arguments import ScanArguments, SelectionArguments
from rmqstore.query.arrow_rows import require_positive
from rmqstore.query.conditions import NO_PRUNING, Pruning
from rmqstore.query.damage import CORRUPT_RECORD, FAILFAST, PERMISSIVE, DamageRules
from rmqstore.query.options import OPTION_OF_ARGUMENT
from rmqstore.query.selection import (
    NO_LOOKUP_KEYS,
    LookupKeys,
    Selection,
    parse_lookup_keys,
    parse_selection,
    parse_tags,
    require_arguments,
)
from rmqstore.query.sql92_filter import parse_filter
from rmqstore.query.where import Where, parse_where, within_physical_offsets
from rmqstore.read.read_spec import ReadRules, ReadSpec, scan_schema, widened
from rmqstore.read.record_filter import LogFilter, log_filter

KNOWN_ARGUMENTS: Final = ("columns", *ScanArguments.__annotations__)
DEFAULTS: Final[Mapping[str, Any]] = {
    name: OPTION_OF_ARGUMENT[name].default_value if name in OPTION_OF_ARGUMENT else None
    for name in KNOWN_ARGUMENTS
} | {"ending_offsets": "latest", "verbatim": False, "progress": ignore_progress}
# The arguments that say which columns a scan returns, beside ``columns``.
OF_SCHEMA: Final = ("include_pending", "verbatim", "mode", "column_name_of_corrupt_record")
_OF_SELECTION: Final = tuple(SelectionArguments.__annotations__)


def returned_schema(
    columns: str | Iterable[str] | pa.Schema | None = None,
    *,
    include_pending: bool = False,
    verbatim: bool = False,
    mode: str = FAILFAST,
    column_name_of_corrupt_record: str = CORRUPT_RECORD,
) -> pa.Schema:
    """Return the columns that a scan with these arguments returns.

    Raises:
        OptionError: a column is unknown, or that of damage has the name of another one.
    """
    corrupt_column = column_name_of_corrupt_record
    of_messages = (*ALL_COLUMNS.names, *(PENDING.names if include_pending else ()))
    if not corrupt_column or corrupt_column in of_messages:
        raise OptionError(
            f"`column_name_of_corrupt_record` {corrupt_column!r}: "
            "must be a name that no column of a message has"
        )
    reason = pa.field(corrupt_column, pa.string())
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    if mode == PERMISSIVE and columns is not None and not isinstance(columns, pa.Schema):
        names = [*columns]
        if names.count(corrupt_column) == 1:
            position = names.index(corrupt_column)
            names.remove(corrupt_column)
            others = scan_schema(names, include_pending=include_pending) if names else pa.schema([])
            return others.insert(position, reason)
        columns = names
    if verbatim and columns is None:
        schema = VERBATIM
    else:
        schema = scan_schema(columns, include_pending=include_pending)
    if mode == PERMISSIVE and corrupt_column not in schema.names:
        schema = schema.append(reason)
    return schema


def known_columns(schema: pa.Schema, *, include_pending: bool) -> pa.Schema:
    """Return the columns that a condition may name: those of the scan and all of a message."""
    return widened(schema, [*ALL_COLUMNS, *(PENDING if include_pending else ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest(ReadRules):
    """The request for one scan, whatever it reads.

    Attributes:
        selection: topics and bounds.
        by: ``queue`` or ``commitlog``.
        lookup_keys: keys, ids or tags, for a look-up.
        where: the condition on columns; None for all rows.
        index_only: whether a look-up skips what the index does not cover.
        include_pending: whether pending messages follow at the end.
        last: only this many messages of each queue, the newest ones; of a scan by log in all.
    """

    selection: Selection
    by: str = "queue"
    lookup_keys: LookupKeys = NO_LOOKUP_KEYS
    where: Where | None = None
    index_only: bool = False
    include_pending: bool = False
    last: int | None = None

    def __post_init__(self) -> None:
        """Refuse arguments that contradict one another."""
        if self.by not in ("queue", "commitlog"):
            raise OptionError(f"`scan` {self.by!r}: queue or commitlog")
        DamageRules.__post_init__(self)
        if self.index_only and not self.lookup_keys:
            raise OptionError(
                "`index_only`: for look-ups only; give `msg_key`, `msg_id` or `msg_tags` too"
            )
        known = {*ALL_COLUMNS.names, *PENDING.names, self.corrupt_column}
        if unknown := set(self.schema.names) - known:
            raise OptionError(f"`columns`: unknown {', '.join(sorted(unknown))}")
        if self.include_pending and not self.is_by_queue:
            raise OptionError("`include_pending`: only a read by queue knows what is pending")
        if self.last is not None and (self.lookup_keys or self.include_pending):
            raise OptionError("`last`: it goes neither with look-ups nor with `include_pending`")
        require_positive("last", self.last)

    @property
    def is_by_queue(self) -> bool:
        """Whether queues lead to the messages."""
        return self.by == "queue" and not self.lookup_keys

    @property
    def named(self) -> Selection | None:
        """What names topics that a store must have; None if nothing does.

        A look-up and a read by log find messages of topics that are gone, too.
        """
        return self.selection if self.is_by_queue and self.selection.named_topics else None

    @property
    def is_quick(self) -> bool:
        """Whether the first rows are the first that are read."""
        has_conditions = self.where is not None or bool(self.lookup_keys) or self.filter is not None
        return not has_conditions and self.tags is None and self.last is None

    @property
    def pruning(self) -> Pruning:
        """What the condition leaves of a read."""
        return NO_PRUNING if self.where is None else self.where.pruning

    def spec(self, broker_name: str = "", advance: Advance = ignore_progress) -> ReadSpec:
        """Return how records of a broker are read.

        The columns are those that are returned, and those that the condition names.

        Args:
            broker_name: the name of the broker.
            advance: called when records were read.
        """
        rules = self.rules()
        if self.where is not None:
            rules["schema"] = widened(self.schema, self.where.columns)
            rules["tags"] = self.where.pruning.tagged(self.tags)
        return ReadSpec(**rules, broker_name=broker_name, advance=advance)

    def log_filter(self) -> LogFilter:
        """Return the filter of records where these are found without their queues.

        Raises:
            OptionError: the selection has queue offsets.
        """
        return log_filter(self.selection, self.spec().schema.names, self.lookup_keys)

    def with_columns(self, names: Iterable[str]) -> ScanRequest:
        """Return the request for these columns of messages too."""
        columns = [ALL_COLUMNS.field(name) for name in names]
        return replace(self, schema=widened(self.schema, columns))

    def kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows that meet the condition."""
        if self.where is None:
            return batches
        matching = map(self.where.keep, batches)
        return (batch for batch in matching if batch.num_rows)

    def returned(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return batches with the columns of the scan alone."""
        names = self.schema.names
        return (batch if batch.schema.names == names else batch.select(names) for batch in batches)


def parse_request(arguments: Mapping[str, Any], *, streaming: bool = False) -> ScanRequest:
    """Return the request that arguments of a scan make; ``MessageStore.scan`` describes them.

    Args:
        arguments: by name, those of ``query.arguments.ScanArguments`` and ``columns``.
        streaming: whether queues start at their ends if nothing else is said, as in a stream.

    Raises:
        OptionError: one is out of its domain, or some contradict one another.
    """
    require_arguments(arguments, KNOWN_ARGUMENTS)
    given = {**DEFAULTS, **arguments}
    of_selection = {name: given[name] for name in _OF_SELECTION}
    selection = parse_selection(**of_selection, streaming=streaming)
    schema = returned_schema(given["columns"], **{name: given[name] for name in OF_SCHEMA})
    start = given["starting_physical_offset"]
    end = given["ending_physical_offset"]
    require_positive("starting_physical_offset", start, least=0)
    require_positive("ending_physical_offset", end, least=0)
    if start is not None and end is not None and start > end:
        raise OptionError(f"`starting_physical_offset` {start}: lies after the end {end}")
    known = known_columns(schema, include_pending=given["include_pending"])
    where = within_physical_offsets(parse_where(given["where"], known), start, end)
    return ScanRequest(
        schema=schema,
        selection=selection,
        by=given["scan"],
        lookup_keys=parse_lookup_keys(given["msg_key"], given["msg_id"], given["msg_tags"]),
        where=where,
        tags=parse_tags(given["tags"]),
        filter=parse_filter(given["filter"]),
        index_only=given["index_only"],
        include_pending=given["include_pending"],
        last=given["last"],
        mode=given["mode"],
        corrupt_column=given["column_name_of_corrupt_record"],
        check_crc=given["check_crc"],
        fail_on_data_loss=given["fail_on_data_loss"],
        inflate=not given["verbatim"],
    )
