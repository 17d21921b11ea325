"""Options of a view: those of a read that mean something for it; others are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pyspark_rmqstore.option_names import VIEW_ARGUMENTS, option_names
from pyspark_rmqstore.option_values import (
    boolean,
    count,
    known_options,
    one_or_many,
    size,
    word,
    zone_of,
)
from pyspark_rmqstore.options import DEFAULT_SPLIT, NAMES
from pyspark_rmqstore.store_options import STORE_PATHS, StoreRef, parse_stores
from rmqstore.errors import OptionError
from rmqstore.read.views.schema import (
    ALLOWED,
    VIEW_MODES,
    VIEW_NAMES,
    ViewSpec,
    select_view_columns,
    view_columns,
    view_spec,
)
from rmqstore.read.views.source import ViewLimits

_EVERYWHERE = {
    "view", "columns", "brokerName", "brokers", *STORE_PATHS, "ignoreLogEnd", "minPartitions",
    "maxBytesPerPartition", "storageOptions", "timeZone",
}  # fmt: skip

_MESSAGES = "messages"
_VIEW_NAMES = {name.lower(): name for name in VIEW_NAMES}


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of one read of a view, validated."""

    view: str
    stores: tuple[StoreRef, ...]
    columns: pa.Schema
    has_named_columns: bool
    limits: ViewLimits
    arguments: Mapping[str, Any] = field(default_factory=dict)
    zone: str | None = None  # of times that name none

    def spec(self, schema: pa.Schema) -> ViewSpec:
        """Return the specification of a read of the view with these columns."""
        with zone_of(self.zone):
            return view_spec(self.view, columns=schema, **self.arguments)


def view_name(options: Mapping[str, str]) -> str | None:
    """Return the view that the options name, in any case of letters, or None for messages."""
    given = next((value for key, value in options.items() if key.lower() == "view"), _MESSAGES)
    name = given.strip().lower()
    return None if name == _MESSAGES else _VIEW_NAMES.get(name, name)


@option_names()
def parse_view_options(options: Mapping[str, str]) -> ViewOptions:
    """Parse the options of a view.

    Raises:
        OptionError: the view or an option is unknown, an option has no meaning for the view, or
            its value is out of its domain.
    """
    view = view_name(options)
    assert view is not None, "the options ask for messages"
    given = known_options(options, NAMES)
    columns = view_columns(view)
    for name in given:
        if name not in _EVERYWHERE:
            _require_allowed(view, name)
    named = given.get("columns")
    if named is not None:
        columns = select_view_columns(view, (name.strip() for name in named.split(",")))
    max_bytes = size(given, "maxBytesPerPartition", DEFAULT_SPLIT)
    parsed = ViewOptions(
        view=view,
        stores=parse_stores(options, given),
        columns=columns,
        has_named_columns=named is not None,
        limits=ViewLimits(max_bytes, count(given, "minPartitions")),
        arguments=_arguments(given),
        zone=given.get("timeZone"),
    )
    parsed.spec(parsed.columns)  # refuses values out of their domain
    return parsed


def _require_allowed(view: str, name: str) -> None:
    views = ALLOWED.get(VIEW_ARGUMENTS.get(name, ""), ())
    if view not in views:
        where = "it is for messages"
        if views:
            where = f"it is for view {', '.join(views)}, and for messages"
        raise OptionError(f"{name} has no meaning with view {view}: {where}")


def _arguments(given: Mapping[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        VIEW_ARGUMENTS[name]: value
        for name, value in given.items()
        if name in VIEW_ARGUMENTS and name != "mode"
    }
    for name in ("clients", "rooms"):
        if name in given:
            arguments[name] = one_or_many(given, name)
    for name in ("includeSystemTopics", "checkCRC"):
        if name in given:
            arguments[VIEW_ARGUMENTS[name]] = boolean(given, name, default=False)
    if "mode" in given:
        # the core refuses FAILFAST with a reason
        arguments["mode"] = word(given, "mode", (*VIEW_MODES, "FAILFAST"))
    return arguments
