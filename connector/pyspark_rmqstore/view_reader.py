"""Views in Spark: their options, their schema and their rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import SPARK_OWN, option_names
from pyspark_rmqstore.packing import plan_tasks, rows_of
from pyspark_rmqstore.schema import SPARK_TYPES, as_allowed, require_names
from pyspark_rmqstore.store_options import parse_stores, zone_of
from rmqstore.errors import OptionError
from rmqstore.format.schema import ALSO_AS, PROPERTIES
from rmqstore.query.options import ALL_READ_OPTIONS, GivenOptions
from rmqstore.read.split import Limits
from rmqstore.read.views.schema import (
    ALLOWED,
    VIEW_NAMES,
    ViewSpec,
    select_view_columns,
    view_columns,
    view_spec,
)
from rmqstore.source.store_source import StoreSource
from rmqstore.source.view_tasks import view_tasks

logger = logging.getLogger(__name__)

_VIEW_NAMES = {name.lower(): name for name in VIEW_NAMES}


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of one read of a view, validated.

    Attributes:
        spec: what is asked for, with the columns that the options name, or else all.
        source: what is read.
        has_named_columns: whether the options name columns.
        limits: those of tasks.
    """

    spec: ViewSpec
    source: StoreSource
    has_named_columns: bool
    limits: Limits


@option_names()
def parse_view_options(options: Mapping[str, str]) -> ViewOptions:
    """Parse the options of a view.

    Raises:
        OptionError: the view or an option is unknown, an option has no meaning for the view, or
            its value is out of its domain.
    """
    given = GivenOptions(options, ALL_READ_OPTIONS, SPARK_OWN)
    name = (given.text("view") or "").strip().lower()
    view = _VIEW_NAMES.get(name, name)
    columns = view_columns(view)
    for option in given.outside("view"):
        views = ALLOWED.get(option.argument, ())
        if view not in views:
            where = "it is for messages"
            if views:
                where = f"it is for view {', '.join(views)}"
                if option.scope:
                    where += ", and for messages"
            raise OptionError(f"{option.name} has no meaning with view {view}: {where}")
    named = given["columns"]
    if named is not None:
        columns = select_view_columns(view, (named,) if isinstance(named, str) else named)
    source = StoreSource(parse_stores(given))
    limits = Limits(given["maxBytesPerPartition"], min_partitions=given["minPartitions"])
    with zone_of(given["timeZone"]):
        spec = view_spec(view, columns=columns, **given.arguments(ALLOWED))
    return ViewOptions(spec, source, named is not None, limits)


def arrow_view_schema(schema: StructType, options: ViewOptions) -> pa.Schema:
    """Return the Arrow schema for a Spark schema, which may be a user's projection.

    Raises:
        OptionError: a column is unknown or named twice, or its type is neither the view's nor a
            safe widening of it.
    """
    require_names(schema, options.spec.schema.names if options.has_named_columns else None)
    view = options.spec.view
    known = view_columns(view)
    fields = []
    for named in schema.fields:
        if named.name not in known.names:
            raise OptionError(
                f"schema: unknown column {named.name}; view {view} has {', '.join(known.names)}"
            )
        own = known.field(named.name).type
        wider = () if own == PROPERTIES else ALSO_AS.get(own, ())
        allowed = (own, *(kind for kind in wider if kind in SPARK_TYPES))
        fields.append(as_allowed(named, allowed, may_be_null=True))
    return pa.schema(fields)


class RmqStoreViewReader(DataSourceReader):
    """Reads a view of one or several stores."""

    def __init__(self, schema: StructType, options: ViewOptions) -> None:
        self._options = options
        self._spec = replace(options.spec, schema=arrow_view_schema(schema, options))

    @option_names()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Runs on the driver.

        Raises:
            OptionError: no store has a topic, a queue or a consumer group that is named.
        """
        options = self._options
        tasks = plan_tasks(view_tasks(options.source, self._spec, options.limits), options.limits)
        view = self._spec.view
        logger.info("planned %d tasks of view %s of %s", len(tasks), view, options.source)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Runs in a task; stateless."""
        return rows_of(partition, lambda task: task.read(self._spec))
