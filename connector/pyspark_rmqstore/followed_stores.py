"""The stores that one stream follows: each look at them gives a snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple, TypeVar

import pyarrow as pa

from pyspark_rmqstore.offsets import Key, StreamOffset
from pyspark_rmqstore.opened_stores import open_ref, paths_of, stores_to_read
from pyspark_rmqstore.options import ReadOptions
from pyspark_rmqstore.store_options import StoreRef
from pyspark_rmqstore.stream_snapshot import Followed, StreamSnapshot
from rmqstore.read.faults import refuse_stretches
from rmqstore.read.follower import follow
from rmqstore.read.planning import find_starts
from rmqstore.read.read_spec import FAILFAST, ReadSpec
from rmqstore.read.reading import find_lost
from rmqstore.storage.broker.broker_run import StoreSigns, queue_folders
from rmqstore.storage.files.retry import ChangingStore

T = TypeVar("T")


class AllSigns(NamedTuple):
    """The signs of several stores."""

    stores: tuple[StoreSigns, ...]

    @property
    def may_be_recovering(self) -> bool:
        return any(store.may_be_recovering for store in self.stores)


class FollowedStores:
    """Stores by broker name.

    They are opened at the first use. All that they keep from one look to the next are the tails,
    which make further looks cheap.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._opened: dict[str, Followed] = {}

    @cached_property
    def _refs(self) -> tuple[StoreRef, ...]:
        return stores_to_read(self._options.stores)

    @cached_property
    def _changing(self) -> ChangingStore:
        return ChangingStore(self._signs, lambda: self.doubt(self._opened))

    def answer(self, ask: Callable[[StreamSnapshot], T]) -> T:
        """Look, and return the answer to a question about what was found.

        Both are repeated while a recovery changes a store.
        """
        return self._changing.answer(lambda: ask(self.look()))

    def initial(self) -> StreamOffset:
        """Return the offset at which the options start."""
        return self._changing.answer(self._initial)

    def _initial(self) -> StreamOffset:
        options = self._options
        initial: dict[Key, int] = {}
        for broker, (_, tail) in self._all().items():
            # it looks only after it has read the offsets of consumer groups
            starts = find_starts(
                tail.store,
                options.selection,
                tail.spans,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            initial |= {(broker, *queue): start for queue, start in starts.items()}
        return StreamOffset(initial, self.last_look().marks)

    def look(self) -> StreamSnapshot:
        """Look for changes in all stores."""
        for followed in self._opened.values():
            followed.tail.look()
        return self.last_look()

    def last_look(self) -> StreamSnapshot:
        """Return what the last look found; the first one if there was none."""
        return StreamSnapshot.of(self._all(), fail_on_data_loss=self._options.fail_on_data_loss)

    def doubt(self, brokers: Iterable[str]) -> None:
        """Let the next look cover all of the stores of some brokers."""
        for broker in brokers:
            self._opened[broker].tail.doubt()

    def close(self) -> None:
        """Close the stores."""
        for followed in self._opened.values():
            followed.store.close()
        self._opened = {}

    def _signs(self) -> AllSigns:
        all_paths = [paths_of(ref) for ref in self._refs]
        return AllSigns(tuple(StoreSigns.of(paths, queue_folders(paths)) for paths in all_paths))

    def _all(self) -> dict[str, Followed]:
        """Return the stores by broker name; each is looked at when it is opened."""
        if not self._opened:
            opened: dict[str, Followed] = {}
            options = self._options
            selection = options.selection
            # Damage of the log that may have held messages of recovered queues is refused as in a
            # batch read. A stream cannot have a row without a queue offset.
            mode = options.mode if options.mode == FAILFAST else "DROPMALFORMED"
            spec = ReadSpec(pa.schema([]), mode, fail_on_data_loss=options.fail_on_data_loss)
            for ref in self._refs:
                store = open_ref(ref)
                store.ranges.warn_unknown_topics(selection, "they are followed once they appear")
                store.warn_of_messages_elsewhere()
                followed = Followed(ref, follow(store, selection))
                opened[store.broker_name] = followed
                followed.tail.look()
                deque(refuse_stretches(find_lost(store, (), spec), spec), maxlen=0)
            self._opened = opened
        return self._opened
