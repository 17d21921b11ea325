"""The keyword arguments of reads, typed once for all functions that pass them on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from inspect import Parameter, signature
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar

import pyarrow.compute as pc

from rmqstore.progress import Progress
from rmqstore.query.damage import Mode

ScanOrder: TypeAlias = Literal["queue", "commitlog"]
Boundary: TypeAlias = Literal["lower", "upper"]
Time: TypeAlias = int | str | datetime


class FolderArguments(TypedDict, total=False):
    """The parts of a store outside its folder, and the broker's file that names them.

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
    """The topics of a read, and the bounds of their queues."""


class ViewArguments(SelectionArguments, total=False):
    """The arguments of views; ``docs/views.md`` says which view takes which."""

    consumer_group: str | None
    clients: str | Iterable[str] | None
    strategy: str | None
    rooms: str | Iterable[str] | None


class ScanArguments(SelectionArguments, total=False):
    """The choice of messages, and the handling of damage.

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


_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes(
    arguments: type, defaults: Mapping[str, Any], name: str | None = None
) -> Callable[[_Function], _Function]:
    """Return a decorator that lets ``help`` and completion show arguments one by one.

    Args:
        arguments: the typed dictionary that the function takes as its last parameter.
        defaults: the default of each argument; None where there is none.
        name: what the function is called in package ``rmqstore``, if another name.
    """

    def show(function: _Function) -> _Function:
        known = signature(function)
        *own, _ = known.parameters.values()
        taken = {parameter.name for parameter in own}
        added = [
            Parameter(
                argument,
                Parameter.KEYWORD_ONLY,
                default=defaults.get(argument),
                annotation=getattr(kind, "__forward_arg__", kind),  # the text
            )
            for argument, kind in arguments.__annotations__.items()
            if argument not in taken
        ]
        function.__signature__ = known.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        if name is not None:
            function.__name__ = function.__qualname__ = name
            function.__module__ = __package__.partition(".")[0]
        return function

    return show
