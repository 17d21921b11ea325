"""What tests ask of a store wherever it lies: the answers do not depend on the place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rmqstore
from reading import read
from rmqstore import MessageStore
from rmqstore.inspect.verify import verify
from rmqstore.read.views.schema import VIEWS

Ask = Callable[[MessageStore], Any]


def by_queue(store: MessageStore) -> Any:
    return read(store)


def by_log(store: MessageStore) -> Any:
    return read(store, scan="commitlog", mode="PERMISSIVE")


def look_ups(store: MessageStore) -> Any:
    rows = read(store, scan="commitlog", mode="DROPMALFORMED")
    keys = [row["keys"].split()[0] for row in rows if row["keys"]]
    chosen = sorted({*keys[:2], *keys[-2:]})
    return [read(store, scan="commitlog", msg_key=key, mode="DROPMALFORMED") for key in chosen]


def times(store: MessageStore) -> Any:
    found = read(store, columns=["storeTimestamp"], mode="DROPMALFORMED")
    middle = found[len(found) // 2]["storeTimestamp"] if found else 0
    return [store.offsets_at(topic, middle) for topic in store.topics()]


def views(store: MessageStore) -> Any:
    found = {name: store.view(name).read_all().to_pylist() for name in VIEWS}
    for row in found["files"]:  # these know nothing of holes, and object storage nothing of times
        del row["allocated"], row["modified"]
    return found


def pending(store: MessageStore) -> Any:
    return read(store, include_pending=True, mode="PERMISSIVE")


def findings(store: MessageStore) -> Any:
    return list(verify(store))


ASKED = [by_queue, by_log, look_ups, times, views, pending, findings]


def answer(open_store: Callable[[], MessageStore], ask: Ask, root: object) -> str:
    """Return what a store answers, or its error, as text without the name of its folder."""
    try:
        with open_store() as store:
            found = repr(ask(store))
    except rmqstore.RmqStoreError as err:
        found = f"{type(err).__name__}: {err}"
    return found.replace(str(root), "")
