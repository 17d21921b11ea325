"""The stores of several brokers, read as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.query.arguments import ScanArguments, TopicArguments, ViewArguments
from rmqstore.query.selection import parse_selection, require_named
from rmqstore.query.where import parse_where
from rmqstore.read.request import OF_SCHEMA, returned_schema
from rmqstore.read.views.catalogue import read_cluster_view, read_view, require_known_names
from rmqstore.read.views.schema import HIDING_SYSTEM_TOPICS, OF_CLUSTER, view_columns, view_spec
from rmqstore.read.views.stores import stores_that_are_read
from rmqstore.storage.files.lifetime import Opened
from rmqstore.store.message_store import MessageStore
from rmqstore.store.scan import Scan


class StoreCluster(Opened):
    """The stores of several brokers, read as one.

    Of a master and its replicas one is read: the master, else the one with the longest log, and in
    controller mode the one with the newest epoch. A context manager; :func:`rmqstore.open` makes
    one of a list of stores.

    Attributes:
        stores: the stores that are read, by broker name.
    """

    def __init__(self, opened: Sequence[MessageStore]) -> None:
        self._opened = opened
        of_parts = {id(store.parts): store for store in opened}
        self.stores: dict[str, MessageStore] = {
            parts.view_broker_name: of_parts[id(parts)]
            for parts in stores_that_are_read([store.parts for store in opened])
        }

    def __repr__(self) -> str:
        """Return the brokers, with the store that is read of each."""
        texts = (f"{name} ({store.paths.root})" for name, store in self.stores.items())
        return f"StoreCluster of {', '.join(texts)}"

    def _repr_html_(self) -> str:
        """Return the same for a notebook, with a table of the first topics of each broker."""
        return "".join(store._repr_html_() for store in self.stores.values())

    def topics(self) -> list[str]:
        """Return every topic with queues of some broker, including system topics, sorted."""
        return sorted({topic for store in self.stores.values() for topic in store.topics()})

    def refresh(self) -> None:
        """List the files of all stores again; see ``MessageStore.refresh``."""
        for store in self._opened:
            store.refresh()

    def close(self) -> None:
        """Release the mapped files of all stores. Batches that were read stay valid."""
        for store in self._opened:
            store.close()

    def scan(
        self,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        **options: Unpack[ScanArguments],
    ) -> Scan:
        """Return the chosen messages of all brokers, one broker after the other.

        Args:
            columns: columns to return; all by default.
            options: the other arguments of ``MessageStore.scan``; ``limit`` counts the messages of
                all brokers.

        Raises:
            OptionError: no broker has a topic or queue that is named; also as
                ``MessageStore.scan`` does.
        """
        limit = options.pop("limit", None)
        given: dict[str, Any] = {**options}
        of_schema = {name: given[name] for name in OF_SCHEMA if name in given}

        def plan() -> Iterator[pa.RecordBatch]:
            (store, arguments), *others = self._options_of_each(options)
            first = store.scan(columns=columns, **arguments)
            rest = (store.scan(columns=columns, **arguments) for store, arguments in others)
            return chain(first, chain.from_iterable(rest))

        def count() -> int:
            total = 0
            for store, arguments in self._options_of_each(options):
                left = None if limit is None else limit - total
                if left == 0:
                    break
                total += store.scan(columns=columns, limit=left, **arguments).count()
            return total

        return Scan(
            returned_schema(columns, **of_schema),
            plan,
            self._require_open,
            limit=limit,
            count=count,
        )

    def count(
        self, *, columns: str | Iterable[str] = "queueOffset", **options: Unpack[ScanArguments]
    ) -> int:
        """Return how many messages a scan gives; see ``MessageStore.count``."""
        return self.scan(columns=columns, **options).count()

    def view(
        self,
        name: str,
        *,
        columns: str | Iterable[str] | pa.Schema | None = None,
        where: str | pc.Expression | None = None,
        **options: Unpack[ViewArguments],
    ) -> Scan:
        """Return a view of all brokers; ``docs/views.md`` lists views and columns.

        Args:
            name: such as ``stores``, ``routes`` or ``queues``.
            columns: columns to return; all by default.
            where: a condition on columns of the view, as in ``MessageStore.view``.
            options: other arguments of the view.

        Raises:
            OptionError: as ``MessageStore.view`` does.
        """
        spec = view_spec(name, columns=columns, **options)
        condition = parse_where(where, view_columns(name))

        def plan() -> Iterator[pa.RecordBatch]:
            if name in OF_CLUSTER:
                for store in self._opened:
                    store.parts.require(f"view {name}")
                sources = [store.parts for store in self._opened]
                if condition is None:
                    return read_cluster_view(sources, spec)
                batches = read_cluster_view(sources, spec.widened(condition.columns))
                return (condition.keep(batch).select(spec.schema.names) for batch in batches)
            chosen = [(store, options) for store in self.stores.values()]
            if name in HIDING_SYSTEM_TOPICS:
                chosen = self._options_of_each(options)
            require_known_names([store.parts for store in self.stores.values()], spec)
            views = (
                read_view(store.parts, view_spec(name, columns=columns, **given), condition)
                for store, given in chosen
            )
            return chain.from_iterable(views)

        return Scan(spec.schema, plan, self._require_open)

    def _require_open(self) -> None:
        for store in self._opened:
            store.parts.require_open()

    def _options_of_each(self, options: Mapping[str, Any]) -> list[tuple[MessageStore, Any]]:
        """Return the stores that have some of the named topics, and the options of each.

        Raises:
            OptionError: no store has a topic or queue that is named.
        """
        topics = {key: options[key] for key in TopicArguments.__annotations__ if key in options}
        selection = parse_selection(**topics)
        if not selection.named_topics:
            return [(store, options) for store in self.stores.values()]
        known = {
            name: store.parts.ranges.named_queues(selection) for name, store in self.stores.items()
        }
        require_named(selection, known.values(), f"brokers {', '.join(self.stores)}")
        chosen: list[tuple[MessageStore, Any]] = []
        for name, store in self.stores.items():
            here = sorted(selection.named_topics & known[name].keys())
            if selection.assign is None:
                named: dict[str, Any] = {"subscribe": here}
            else:
                assigned = {topic: selection.assign[topic] & known[name][topic] for topic in here}
                named = {"assign": {topic: ids for topic, ids in assigned.items() if ids}}
            if any(named.values()):
                chosen.append((store, {**options, **named}))
        return chosen or [(next(iter(self.stores.values())), options)]
