"""Of broken stores `verify` says what the real RocketMQ then did with them, case by case."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import broken_stores
import goldens
import rmqstore
from broken_stores import Case, findings, lost_of, unserved
from goldens import Golden
from rmqstore.inspect.remedies import kind_of
from rmqstore.inspect.verify import verify

OTHERS = ("batch-cq", "cq-ext", "lmq")
TRUTH = broken_stores.truth("live", "crash", *OTHERS)
# A first file that is gone looks as if retention had deleted it. What a broker reads of a file with
# the name of another place, and of two files of one name, is as its arithmetic has it.
NOT_KNOWN = {
    ("commitlog", "first", "missing"),
    *(("commitlog", place, "renamed") for place in broken_stores.PLACES),
    *(("commitlog", place, "stale-twin") for place in broken_stores.PLACES),
    *(("consumequeue", place, "renamed") for place in broken_stores.PLACES),
}
BY_CHANCE = "without an end, or miss more"


def in_damaged_part(case: Case, queue: str, offset: int) -> bool:
    """Return whether a broker serves the bytes of a record whose end was made zeros."""
    topic, _, queue_id = queue.rpartition("-")
    rows = goldens.queues(case.store)[topic, int(queue_id)]
    return case.damage in ("page", "tail") and any(row["queueOffset"] == offset for row in rows)


def check(whole: Path, case: Case, root: Path) -> None:
    real, found = TRUTH[case], findings(whole, case, root)
    shutil.rmtree(root)
    kinds = {kind_of(one) for one in found}
    assert any(one.stops_broker for one in found) == (not real["starts"]), case
    is_known = case.store == "live" or case.damage != "renamed"
    if case[2:] in NOT_KNOWN and case.damage != "missing":
        assert not any(one.unserved or one.next_offset is not None for one in found), case
    if case[2:] in NOT_KNOWN or not real["starts"] or not is_known:
        return
    said, lost = unserved(found), lost_of(real)
    more = {(queue, offset) for queue in said for offset in said[queue]}
    more -= {(queue, offset) for queue in lost for offset in lost[queue]}
    # the messages of one record
    assert any(in_damaged_part(case, *one) for one in more) or not more, (case, more)
    assert len(more) < (2 if case.store != "batch-cq" else 9), (case, more)
    for queue, offsets in lost.items():
        is_sure = not any(BY_CHANCE in one.text for one in found if one.place == queue)
        assert said.get(queue, set()) & offsets == (offsets if is_sure else said[queue]), case
    following = {one.place: one.next_offset for one in found if one.next_offset is not None}
    assert following == real["next"], case
    if lost or real["next"]:
        assert kinds & {"lost", "gone", "unbuilt"}, case


@pytest.mark.parametrize("part", broken_stores.PARTS)
@pytest.mark.parametrize("state", broken_stores.STATES)
def test_it_says_what_the_real_broker_does(
    live: Path, tmp_path: Path, state: str, part: str
) -> None:
    for case in TRUTH:
        if (case.store, case.state, case.part) == ("live", state, part):
            check(live, case, tmp_path / "s")


@pytest.mark.parametrize("name", OTHERS)
def test_it_says_so_of_other_kinds_of_queues(
    golden_store: Golden, tmp_path: Path, name: str
) -> None:
    for case in broken_stores.truth(name):
        check(golden_store(name), case, tmp_path / "s")


def test_what_saves_it_comes_in_the_order_of_what_is_lost(live: Path, tmp_path: Path) -> None:
    case = Case("live", "closed", "commitlog", "newest", "missing")
    found = findings(live, case, tmp_path / "s")
    assert kind_of(found[0]) == "lost"
    (said,) = (one.text for one in found if "messages of" in one.text)
    assert said == (
        "91 messages of 14 queues are lost with the end of the log; a broker that starts gives "
        "their queue offsets out again"
    )


def test_of_a_crashed_store_it_says_which_units_a_broker_does_not_build(
    golden_store: Golden,
) -> None:
    """The real store has 609 of 699 messages after its recovery."""
    with rmqstore.open(golden_store("crash")) as store:
        found = list(verify(store))
    (unbuilt,) = (one for one in found if kind_of(one) == "unbuilt")
    assert unbuilt.place == "CrashB-2"
    assert "does not serve queue offsets 0 to 89, which the log has" in unbuilt.text
    assert {one.place for one in found if kind_of(one) == "queue"} == {"CrashA-0", "CrashB-1"}
    assert "keys" in {kind_of(one) for one in found}
