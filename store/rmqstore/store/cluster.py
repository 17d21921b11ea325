"""The stores of several brokers, read as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc

from rmqstore.query.arguments import ScanArguments, ViewArguments
from rmqstore.read.views.schema import OF_CLUSTER, view_spec
from rmqstore.read.views.stores import stores_that_are_read
from rmqstore.storage.files.lifetime import Opened
from rmqstore.store.message_store import MessageStore
from rmqstore.store.scan import Scan, scan_messages, scan_view


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
            OptionError: no broker has a topic or queue that is named, but for a look-up or a scan
                by log; also as ``MessageStore.scan`` does.
        """
        given = {"columns": columns, **options}
        sources = [store.parts for store in self.stores.values()]
        return scan_messages(sources, given, self._require_open)

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

        opened = self._opened if name in OF_CLUSTER else self.stores.values()
        return scan_view([store.parts for store in opened], spec, where, self._require_open)

    def _require_open(self) -> None:
        for store in self._opened:
            store.parts.require_open()
