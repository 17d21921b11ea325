"""One open store that several threads and a forked process read, also beside refreshes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event, Thread

import pyarrow.fs as pafs
import pytest

import rmqstore
from goldens import Golden
from reading import descriptors_in, rows
from remote_reads import answer, by_queue, look_ups, times
from rmqstore import MessageStore, StoreStateError
from rmqstore.storage.files import mapped_file_queue, recent

KINDS = ("basic", "batch-cq", "crash", "cq-ext", "rocksdb-cq", "tiered", "compacted", "remote")


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, golden_store: Golden) -> Callable[[], MessageStore]:
    kind = request.param
    root = golden_store("edges" if kind == "remote" else kind)
    if kind == "remote":
        return lambda: rmqstore.open(str(root), filesystem=pafs.LocalFileSystem())
    if kind == "compacted":
        return lambda: rmqstore.open(root / "compaction")
    tier = root / "tieredstore"
    return lambda: rmqstore.open(root, tiered=tier if kind == "tiered" else None)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let threads take turns often, and keep hardly anything open."""
    monkeypatch.setattr(mapped_file_queue, "Recent", lambda _: recent.Recent(1))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_threads_get_what_one_gets(open_store: Callable[[], MessageStore]) -> None:
    asked = (by_queue, look_ups, times)
    expected = [answer(open_store, ask, "") for ask in asked]
    ended = Event()
    with open_store() as store:

        def refresh() -> None:
            for _ in range(20):
                if not ended.wait(0.002):
                    store.refresh()

        def read(_number: int) -> list[str]:
            return [answer(lambda: nullcontext(store), ask, "") for ask in asked]

        other = Thread(target=refresh)
        other.start()
        try:
            with ThreadPoolExecutor(3) as pool:
                assert [*pool.map(read, range(3))] == [expected] * 3
        finally:
            ended.set()
            other.join()


@pytest.mark.parametrize("by", ["queue", "commitlog"])
def test_a_read_goes_on_beside_a_refresh_and_ends_at_the_close(
    golden_store: Golden, by: str
) -> None:
    root = golden_store("crash")
    with rmqstore.open(root) as store:
        expected = rows(store.scan(scan=by))
        found = []
        for batch in store.scan(scan=by):
            found += rows([batch])
            store.refresh()
        assert found == expected
        begun = iter(store.scan(scan=by))
        next(begun)
    before = descriptors_in(root)
    with pytest.raises(StoreStateError):
        list(begun)
    assert descriptors_in(root) <= before  # what it opened again was not kept


def test_a_child_process_reads_and_closes_what_it_inherits(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("rocksdb-cq")) as store:
        expected = rows(store.scan())
        child = os.fork()
        if not child:
            signal.alarm(60)
            is_right = rows(store.scan()) == expected
            store.refresh()
            store.close()
            os._exit(0 if is_right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert rows(store.scan()) == expected
