"""Stores that are read through ``pyarrow.fs``: the answers are those of a local disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

import goldens
import rmqstore
import tiers
from reading import read
from rmqstore import MessageStore
from rmqstore.inspect.verify import verify
from rmqstore.read.views.schema import VIEWS

GoldenStore = Callable[[str], Path]
Ask = Callable[[MessageStore], Any]
NAMES = tuple(
    dict.fromkeys(
        (
            *goldens.EVERY, *goldens.NEWEST, *goldens.NEWEST_CRASHED, *goldens.OF_GROUPS,
            *goldens.OF_GROUPS_CRASHED, *goldens.TORN,
        )
    )
)  # fmt: skip


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


def findings(store: MessageStore) -> Any:
    return list(verify(store))


ASKED = [by_queue, by_log, look_ups, times, views, findings]


def answer(open_store: Callable[[], MessageStore], ask: Ask, root: object) -> str:
    """Return what a store answers, or its error, as text without the name of its folder."""
    try:
        with open_store() as store:
            found = repr(ask(store))
    except rmqstore.RmqStoreError as err:
        found = f"{type(err).__name__}: {err}"
    return found.replace(str(root), "")


@pytest.mark.parametrize(("name", "ask"), tiers.spread(7, NAMES, ASKED))
def test_a_file_system_of_pyarrow_gives_what_the_disk_gives(
    golden_store: GoldenStore, name: str, ask: Ask
) -> None:
    root = golden_store(name)
    expected = answer(lambda: rmqstore.open(root), ask, root)
    filesystem = pafs.LocalFileSystem()
    found = answer(lambda: rmqstore.open(str(root), filesystem=filesystem), ask, f"local:/{root}")
    assert found == expected
