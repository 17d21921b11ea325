"""The views of a store: their names, and the arguments that each takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from rmqstore.errors import OptionError, about
from rmqstore.query.allocation import Sharing, parse_sharing
from rmqstore.query.arguments import BOUND_ARGUMENTS
from rmqstore.query.selection import Selection, parse_selection
from rmqstore.read.views.columns import COLUMN_TYPES

# People look for damage in views, so damage is shown or left out but never stops a view.
PERMISSIVE, DROPMALFORMED = VIEW_MODES = ("PERMISSIVE", "DROPMALFORMED")

# These show all stores of a read together, the others each store by itself.
OF_CLUSTER: Final = ("stores", "routes", "assignments")
# These need arguments.
SHARING_QUEUES: Final = ("assignments",)
# These read messages, and take the bounds of a scan.
OF_MESSAGES: Final = ("deadLetters", "traces", "consumed")

_ALL: Final = {name: pa.schema(list(types.items())) for name, types in COLUMN_TYPES.items()}
VIEW_NAMES: Final = tuple(_ALL)
VIEWS: Final[dict[str, pa.Schema]] = {  # that need no arguments
    name: schema for name, schema in _ALL.items() if name not in SHARING_QUEUES
}

BY_QUEUE: Final = ("queues", "topics", "commitlog", "consumequeue", "groups", *OF_MESSAGES)
BY_TOPIC: Final = (*BY_QUEUE, "routes", "assignments")
HIDING_SYSTEM_TOPICS: Final = ("queues", "topics", "consumequeue", "routes", "consumed")
SHOWING_DAMAGE: Final = ("commitlog", "consumequeue", "index", *OF_MESSAGES)
CHECKING_CRC: Final = ("commitlog", *OF_MESSAGES)
OF_GROUP: Final = (*SHARING_QUEUES, "deadLetters", "consumed")

# The views that take each argument.
ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "subscribe": BY_TOPIC,
    "subscribe_pattern": BY_TOPIC,
    "assign": BY_QUEUE,
    "include_system_topics": HIDING_SYSTEM_TOPICS,
    **dict.fromkeys(BOUND_ARGUMENTS, OF_MESSAGES),
    "consumer_group": OF_GROUP,
    "clients": SHARING_QUEUES,
    "strategy": SHARING_QUEUES,
    "rooms": SHARING_QUEUES,
    "mode": SHOWING_DAMAGE,
    "check_crc": CHECKING_CRC,
}


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """The request for a view, the same for every piece of it."""

    view: str
    schema: pa.Schema  # the requested columns, in their order
    selection: Selection = field(default_factory=Selection)
    mode: str = PERMISSIVE
    check_crc: bool = True
    sharing: Sharing | None = None  # of the view ``assignments``
    consumer_group: str | None = None  # of views of messages: only this group

    def __post_init__(self) -> None:
        """Refuse a mode that views do not have."""
        if self.mode not in VIEW_MODES:
            raise OptionError(
                about(
                    "mode",
                    f" {self.mode!r}: a view is not stopped by damage; "
                    "PERMISSIVE shows it, DROPMALFORMED leaves it out",
                )
            )

    def widened(self, columns: Iterable[pa.Field]) -> ViewSpec:
        """Return the request with further columns, which a condition compares."""
        extra = [column for column in columns if column.name not in self.schema.names]
        return replace(self, schema=pa.schema([*self.schema, *extra]))

    @property
    def names_topics(self) -> bool:
        """Whether the selection names topics or queues that must be there."""
        return self.view in HIDING_SYSTEM_TOPICS and bool(self.selection.named_topics)


def view_columns(view: str) -> pa.Schema:
    """Return all columns of a view.

    Raises:
        OptionError: there is no such view.
    """
    if view not in _ALL:
        raise OptionError(f"view {view!r}: one of messages, {', '.join(_ALL)}")
    return _ALL[view]


def select_view_columns(view: str, names: Iterable[str]) -> pa.Schema:
    """Return the schema of the named columns of a view, in the order given.

    Raises:
        OptionError: a name is unknown or comes twice, or there is none.
    """
    known, chosen = view_columns(view), list(names)
    unknown = [name for name in chosen if name not in known.names]
    if unknown:
        raise OptionError(
            about(
                "columns",
                f": unknown {', '.join(unknown)}; view {view} has {', '.join(known.names)}",
            )
        )
    if not chosen or len(set(chosen)) < len(chosen):
        raise OptionError(
            about("columns", f": name each column once and at least one, got {chosen}")
        )
    return pa.schema([known.field(name) for name in chosen])


def view_spec(
    view: str,
    *,
    columns: str | Iterable[str] | pa.Schema | None = None,
    mode: str | None = None,
    check_crc: bool | None = None,
    consumer_group: str | None = None,
    clients: str | Iterable[str] | None = None,
    strategy: str | None = None,
    rooms: str | Iterable[str] | None = None,
    **selection: object,
) -> ViewSpec:
    """Return the checked request for a view.

    Args:
        view: name of the view.
        columns: names of columns, as a list or separated by commas; all by default.
        mode: PERMISSIVE or DROPMALFORMED, for the views that show damage.
        check_crc: whether to check CRCs, for ``commitlog`` and views of messages.
        consumer_group: the group, for the view ``assignments``; only this group, for views of
            messages.
        clients: the ids of all its clients, as a list or separated by commas.
        strategy: how they share the queues, ``AVG`` by default.
        rooms: with ``MACHINE_ROOM``: those whose brokers' queues are consumed.
        selection: subscribe, subscribe_pattern, assign and include_system_topics, for the views
            that know topics; where queues start and end, for views of messages.

    Raises:
        OptionError: the view does not take an argument, or a value is out of its domain.
    """
    known = view_columns(view)
    given = {name for name, value in selection.items() if value is not None and value is not False}
    others = {
        "mode": mode,
        "check_crc": check_crc,
        "consumer_group": consumer_group,
        "clients": clients,
        "strategy": strategy,
        "rooms": rooms,
    }
    given |= {name for name, value in others.items() if value is not None}
    require_allowed(view, given)
    sharing = None
    if view in SHARING_QUEUES:
        sharing = parse_sharing(consumer_group or "", clients or (), strategy or "AVG", rooms)
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    if columns is not None and not isinstance(columns, pa.Schema):
        columns = select_view_columns(view, columns)
    return ViewSpec(
        view=view,
        schema=known if columns is None else columns,
        selection=parse_selection(**selection),  # type: ignore[arg-type]  # it checks them itself
        mode=mode or PERMISSIVE,
        check_crc=check_crc is not False,
        sharing=sharing,
        consumer_group=consumer_group if view in OF_MESSAGES else None,
    )


def require_allowed(view: str, arguments: Iterable[str]) -> None:
    """Refuse arguments that make no sense with a view.

    Raises:
        OptionError: an argument is not one of the view. The message names it.
    """
    for name in sorted(arguments):
        views = ALLOWED.get(name, ())
        if view not in views:
            where = f"it is for {', '.join(views)}" if views else "it is for messages"
            raise OptionError(about(name, f" has no meaning with view {view}: {where}"))
