"""The keyword arguments of reads, typed once for all functions that pass them on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, signature
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar

import pyarrow.compute as pc

from rmqstore.progress import Progress

Mode: TypeAlias = Literal["FAILFAST", "DROPMALFORMED", "PERMISSIVE"]
ScanOrder: TypeAlias = Literal["queue", "commitlog"]
Boundary: TypeAlias = Literal["lower", "upper"]
Time: TypeAlias = int | str | datetime


class FolderArguments(TypedDict, total=False):
    """The parts of a store that lie outside of its folder, and the broker's file that names them.

    The defaults are those of ``storage.broker.folders.find_store``.
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
    progress: Progress


_LINES: Final = {
    "commitlogs": "the log's folders, where outside of ``path`` (``storePathCommitLog``)",
    "consumequeue": "the queues' folder, where outside of ``path``",
    "index": "the index's folder, where outside of ``path``",
    "dledger_logs": "folders of a DLedger log, where outside (``storePathDLedgerCommitLog``)",
    "dledger_self_id": "the node whose DLedger log to read, of several (``dLegerSelfId``)",
    "conf": "the broker's properties file, which names all of these and the root, sizes and name",
    "subscribe": "topics: a list, or text with commas; all user topics by default",
    "subscribe_pattern": "topics by a regular expression, in place of ``subscribe``",
    "assign": "queues by topic, such as ``{'Orders': [0, 1]}``, in place of ``subscribe``",
    "include_system_topics": "whether topics of the broker itself are among all topics",
    "starting_offsets": "where queues start: earliest, latest, ``group:NAME`` or offsets by queue",
    "ending_offsets": "where queues end, excluded: latest, ``group:NAME`` or offsets by queue",
    "starting_timestamp": "leave out what was stored before this time",
    "ending_timestamp": "leave out what was stored at this time or after it",
    "starting_offsets_by_timestamp": "start times by queue",
    "ending_offsets_by_timestamp": "end times by queue",
    "starting_offsets_by_timestamp_strategy": "error or latest, where no message is that late",
    "consumer_group": "a consumer group, for the views that take one",
    "clients": "for view ``assignments``: the ids of the group's clients",
    "strategy": "for view ``assignments``: the name of an allocation strategy",
    "rooms": "for view ``assignments``: machine rooms, for the strategies that ask for them",
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def spells_out(
    arguments: type, like: Callable[..., Any], name: str | None = None
) -> Callable[[_Function], _Function]:
    """Return a decorator that lets ``help`` show arguments one by one, with a line for each.

    Args:
        arguments: the typed dictionary that the function takes as its last parameter.
        like: a function with these parameters, which has their types and defaults.
        name: what the function is called in package ``rmqstore``, if another name.
    """

    def spell_out(function: _Function) -> _Function:
        known = signature(function)
        *others, rest = known.parameters.values()
        given = signature(like).parameters
        taken = {one.name for one in others}
        named = [each for each in arguments.__annotations__ if each not in taken]
        added = [
            given[each].replace(kind=Parameter.KEYWORD_ONLY)
            if each in given
            else Parameter(each, Parameter.KEYWORD_ONLY, default=None)
            for each in named
        ]
        function.__signature__ = known.replace(parameters=[*others, *added])  # type: ignore[attr-defined]
        lines = "".join(rf"\g<1>{each}: {_LINES[each]}.\n" for each in named)
        paragraph = re.compile(rf"^( +){rest.name}: .*\n(?:\1 +.*\n)*", re.MULTILINE)
        function.__doc__ = paragraph.sub(lines, function.__doc__ or "", count=1)
        if name is not None:
            function.__name__ = function.__qualname__ = name
            function.__module__ = __package__.partition(".")[0]
        return function

    return spell_out
