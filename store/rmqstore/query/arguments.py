"""The keyword arguments of reads, typed once for all functions that pass them on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, TypedDict

import pyarrow.compute as pc

Mode: TypeAlias = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
ScanOrder: TypeAlias = Literal["queue", "commitlog"]
Boundary: TypeAlias = Literal["lower", "upper"]
Time: TypeAlias = int | str | datetime


class FolderArguments(TypedDict, total=False):
    """The parts of a store that lie outside of its folder, and the broker's file that names them.

    The defaults are those of ``storage.folders.find.find_store``.
    """

    commitlogs: Sequence[str]
    consumequeue: str | None
    index: str | None
    dledger_logs: Sequence[str]
    dledger_self_id: str | None
    conf: str | PathLike[str] | None


class TopicArguments(TypedDict, total=False):
    """Which topics: by name, by pattern or with queues. If none is given, all user topics."""

    subscribe: str | Iterable[str] | None
    subscribe_pattern: str | None
    assign: str | Mapping[str, Iterable[int]] | None
    include_system_topics: bool


class BoundArguments(TypedDict, total=False):
    """Where queues start and end.

    The defaults are those of ``selection.parse_selection``.
    """

    starting_offsets: str | Mapping[str, Any] | None
    ending_offsets: str | Mapping[str, Any]
    starting_timestamp: Time | None
    ending_timestamp: Time | None
    starting_offsets_by_timestamp: str | Mapping[str, Any] | None
    ending_offsets_by_timestamp: str | Mapping[str, Any] | None
    starting_offsets_by_timestamp_strategy: str | None


BOUND_ARGUMENTS: Final = tuple(BoundArguments.__annotations__)


class SelectionArguments(TopicArguments, BoundArguments, total=False):
    """Which topics, and where their queues start and end."""


class ViewArguments(SelectionArguments, total=False):
    """What of a store a view shows; which views take which argument is in ``docs/views.md``."""

    consumer_group: str | None
    clients: str | Iterable[str] | None
    strategy: str | None
    rooms: str | Iterable[str] | None


class ScanArguments(SelectionArguments, total=False):
    """Which messages, and what is done with damage.

    The defaults are those of ``MessageStore.scan``.
    """

    where: str | pc.Expression | None
    filter: str | None
    tags: str | None
    scan: ScanOrder
    msg_key: str | Sequence[str] | None
    msg_id: str | Sequence[str] | None
    msg_tags: str | Sequence[str] | None
    index_only: bool
    include_pending: bool
    mode: Mode
    column_name_of_corrupt_record: str
    check_crc: bool
    fail_on_data_loss: bool
    verbatim: bool
    limit: int | None
    last: int | None
    starting_physical_offset: int | None
    ending_physical_offset: int | None
