"""The original answers as the golden stores say, and as it was recorded of broken ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import broken_stores
import goldens
from broken_stores import Case
from interop.conftest import jars_of
from interop.test_broken_stores import spans, written
from judge.original import Answer, Asked, Original

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    jars_of("5.3.3")
    with Original(tmp_path_factory.mktemp("original")) as judge:
        yield judge


def test_a_whole_store_is_served_whole_and_stays_so(
    original: Original, copied: goldens.Golden
) -> None:
    keys = goldens.lines("live", "keys")[:9]
    asked = Asked(keys=tuple((row["topic"], row["key"]) for row in keys))
    answer = original.answer(copied("live"), goldens.summary("live")["conf"], asked)
    summary = goldens.summary("live")
    assert (answer["starts"], answer["refusal"], answer["again"]) == (True, "", None)
    assert answer["log"] == [summary["minPhyOffset"], summary["maxPhyOffset"]]
    assert answer["files"] == {}
    assert (answer["garbled"], answer["stuck"]) == ({}, {})
    assert answer["served"] == {
        f"{topic}-{queue_id}": [
            [row["queueOffset"], row["physicalOffset"], int(row["recordCrc32"], 16)] for row in rows
        ]
        for (topic, queue_id), rows in goldens.queues("live").items()
        if rows
    }
    assert answer["keys"] == {
        f"{row['topic']} {row['key']}": row["physicalOffsets"] for row in keys
    }
    assert answer["groups"]["CG_part LivePlain-1"] == 25
    assert answer["delayed"] == answer["delayed"] | {"1": 14, "2": 5, "timers": [58, 0]}


def told(answer: Answer, store: str) -> broken_stores.Row:
    """Return an answer in the words of ``broken.json.xz``."""
    if not answer["starts"]:
        return {"starts": False}
    lost, following = {}, {}
    for (topic, queue_id), places in written(store).items():
        queue = f"{topic}-{queue_id}"
        found = {offset: place for offset, place, _ in answer["served"].get(queue, ())}
        # the messages of an inner batch are served with the first one
        first = {place: offset for offset, place in reversed(places.items())}
        gone = [offset for offset, place in places.items() if found.get(first[place]) != place]
        if gone:
            lost[queue] = spans(gone)
        if topic != "SCHEDULE_TOPIC_XXXX" and answer["next"][queue] != max(places) + 1:
            following[queue] = answer["next"][queue]
    return {"starts": True, "lost": lost, "next": following}


CASES = [
    Case("live", "closed", "commitlog", "newest", "cut"),
    Case("live", "crashed", "commitlog", "middle", "page"),
    Case("live", "closed", "consumequeue", "newest", "missing"),
    Case("crash", "crashed", "commitlog", "newest", "tail"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_broken_store_is_answered_as_recorded(
    original: Original, golden_store: goldens.Golden, tmp_path: Path, case: Case
) -> None:
    root = tmp_path / "s"
    broken_stores.make(golden_store(case.store), case, root)
    asked = Asked(queues=tuple(written(case.store)), again=False)
    answer = original.answer(root, goldens.summary(case.store)["conf"], asked)
    known = broken_stores.truth(case.store)[case]
    assert told(answer, case.store) == {name: known[name] for name in known if name != "keys"}


def test_a_damaged_table_of_the_broker_refuses_the_store(
    original: Original, copied: goldens.Golden
) -> None:
    root = copied("one")
    (root / "config").mkdir()
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text("{")
    settings = goldens.summary("one")["conf"]
    assert original.answer(root, settings) == {"starts": False, "refusal": "tables"}
    # without its JVM the next one answers
    original._jvm.process.kill()
    assert original.answer(root, settings)["refusal"] == "hangs"
    assert original.answer(root, settings)["refusal"] == "tables"
