"""The original answers as the golden stores say, and as it was recorded of broken ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import broken_stores
import goldens
import rmqstore
import tiers
from broken_stores import Case, spans, written
from interop.conftest import jars_of
from judge import cases, rules
from judge.cases import Origins
from judge.judging import Judge
from judge.original import Answer, Asked, Original

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    jars_of("5.3.3")
    with Original(tmp_path_factory.mktemp("original")) as judge:
        yield judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    jars_of("5.3.3")
    home = tmp_path_factory.mktemp("judge")
    with Judge(home, home / "origins") as judge:
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


TRUTH = broken_stores.truth("live", "crash", "batch-cq", "cq-ext", "lmq")
SAMPLE = [
    Case("live", "closed", "commitlog", "newest", "cut"),
    Case("live", "crashed", "commitlog", "middle", "page"),
    Case("live", "closed", "consumequeue", "newest", "missing"),
    Case("live", "crashed", "consumequeue", "first", "page"),
    Case("crash", "crashed", "commitlog", "newest", "tail"),
    Case("batch-cq", "closed", "batchconsumequeue", "newest", "missing"),
    Case("batch-cq", "crashed", "commitlog", "first", "page"),
    Case("cq-ext", "closed", "consumequeue_ext", "first", "missing"),
    Case("lmq", "closed", "consumequeue", "newest", "missing"),
]
OF_REBUILDS = {
    rule.__name__
    for rule in (
        rules.remedies_do_what_they_promise, rules.a_rebuild_is_done_as_planned,
        rules.what_is_appended_is_served,
    )
}  # fmt: skip


def told(answer: Answer, store: str) -> broken_stores.Row:
    """Return an answer in the words of ``broken.json.xz``.

    ``lost`` are the queue offsets that are not served, as spans; ``next`` the one that the next
    message gets, where it is not the one after the last.
    """
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


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Origins:
    return Origins(tmp_path_factory.mktemp("origins"))


@pytest.mark.parametrize(
    "case", tiers.split(dict.fromkeys([*SAMPLE, *TRUTH]), len(SAMPLE)), ids=str
)
def test_a_broken_store_is_answered_as_recorded(
    original: Original, origins: Origins, tmp_path: Path, case: Case
) -> None:
    known = {name: value for name, value in TRUTH[case].items() if name != "keys"}
    known["next"] = {
        queue: offset for queue, offset in known.get("next", {}).items() if "SCHEDULE" not in queue
    }
    origin, answers = origins[f"golden/{case.store}"], []
    # which of two files of one name it reads goes by the hashes of their folders' paths
    for name in "abcdefghijkl" if case.damage == "stale-twin" else "a":
        root = tmp_path / name
        broken_stores.make(origin.root, case, root)
        logs = [Path(folder).name for folder in broken_stores.folders(case, root)]
        paths = {"storePathCommitLog": ",".join(logs)} if len(logs) > 1 else {}
        asked = Asked(queues=tuple(written(case.store)), again=False)
        answer = original.answer(root, origin.settings | paths, asked)
        answers.append({"next": {}, **told(answer, case.store)})
        if answers[-1] == known:
            return
    assert known in answers


def test_the_index_does_not_find_keys_of_a_crashed_store_again(
    original: Original, copied: goldens.Golden
) -> None:
    """Of 96 items, which `verify` counts, 77 are of messages that the real store still serves."""
    root, of_keys = copied("crash"), []
    with rmqstore.open(root) as store:
        columns = ["topic", "commitLogOffset", "properties"]
        for row in store.scan(scan="commitlog", columns=columns).read_all().to_pylist():
            found = dict(row["properties"])
            keys = f"{found.get('UNIQ_KEY', '')} {found.get('KEYS', '')}".split()
            of_keys += [(row["topic"], key, row["commitLogOffset"]) for key in keys]
    asked = Asked(keys=tuple((topic, key) for topic, key, _ in of_keys), again=False)
    answer = original.answer(root, goldens.summary("crash")["conf"], asked)
    lost = [at for topic, key, at in of_keys if at not in answer["keys"][f"{topic} {key}"]]
    served = {row["physicalOffset"] for row in goldens.lines("crash", "expected")}
    assert len(lost) == 96
    assert sum(place in served for place in lost) == 77


@pytest.mark.parametrize(
    "text",
    [
        "golden/live | closed | commitlog/00000000000000196608 | cut=24210",
        "golden/live | crashed | commitlog/00000000000000196608 | long=4096",
        "golden/live | closed | commitlog/00000000000000098304 | missing",
        "golden/live | crashed | commitlog/00000000000000098304 | page=32752",
        "golden/live | closed | consumequeue/LivePlain/1/00000000000000000500 | page=164",
        "golden/batch-cq | closed | commitlog/00000000000000065536 | missing",
        "golden/batch-cq | closed | batchconsumequeue/BatchA/0/00000000000000001472 | missing",
        "golden/cq-ext | closed | consumequeue_ext/ExtA/1/00000000000000000000 | missing",
        "golden/lmq | closed | consumequeue/%LMQ%sub_1/0/00000000000000001200 | missing",
        "golden/crash | crashed | index/20261121021419730 | long=4096",
    ],
)
def test_a_broken_store_is_served_as_planned_once_it_was_built_again(
    judge: Judge, text: str
) -> None:
    broken = judge.judge(cases.Case.parse(text)).broken
    assert {name: broken[name] for name in broken.keys() & OF_REBUILDS} == {}


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
