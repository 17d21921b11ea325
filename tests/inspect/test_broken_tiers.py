"""Of broken tiered storage `verify` says what the real RocketMQ then did with it, case by case."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import broken_stores
import rmqstore
import tiers
from broken_stores import Case, findings, lost_of, unserved
from goldens import Golden
from rmqstore.inspect.remedies import CheckedStore, by_kind, kind_of
from rmqstore.inspect.verify import verify
from rmqstore.storage.broker.config_files import table_of
from written import require_valid

TRUTH = broken_stores.truth("tiered")


def check(whole: Path, case: Case, root: Path) -> None:
    real, found = TRUTH[case], findings(whole, case, root)
    shutil.rmtree(root)
    said, lost = unserved(found), lost_of(real)
    assert said.keys() == lost.keys(), case
    for queue, offsets in lost.items():
        # The end of a record may be zeros, or its first bytes: no checksum covers its properties.
        tolerance = 1 if case.damage in ("page", "tail") else 0
        assert len(said[queue] ^ offsets) <= tolerance, case
    assert any("deletes all" in one.text for one in found) == ("deleted" in real), case
    assert {*real.get("stops", {})} <= {one.place for one in found}, case
    looked_at = case.part != "INDEX" or case.damage not in ("page", "tail")
    # the length of a segment that was written to last is noted now and then
    is_newest = case.place in ("newest", broken_stores.ALONE)
    looked_at &= not (is_newest and (case.state, case.damage) == ("crashed", "long"))
    assert {one.part for one in found} == ({"tier"} if looked_at else set()), case
    if looked_at and case.damage in ("missing", "cut", "empty", "renamed", "suffixed"):
        assert {kind_of(one) for one in found} - {"stray"}, case


@pytest.mark.parametrize("step", tiers.sampled(8, 1))
@pytest.mark.parametrize("part", broken_stores.TIER_PARTS)
def test_it_says_what_the_real_broker_does(
    golden_store: Golden, tmp_path: Path, part: str, step: int
) -> None:
    of_part = [case for case in TRUTH if case.part == part]
    for case in of_part[::step]:
        check(golden_store("tiered"), case, tmp_path / "s")


def test_the_worst_is_that_a_broker_deletes_what_nothing_else_has(
    golden_store: Golden, tmp_path: Path
) -> None:
    case = Case("tiered", "closed", "CONSUME_QUEUE", "alone", "missing")
    found = findings(golden_store("tiered"), case, tmp_path / "s")
    assert found[0].place == "TierB-0"
    assert found[0].text == (
        "a broker that starts deletes all 5 segments of the queue: its units end at queue offset "
        "50, and the local store begins at 55; it does not serve queue offsets 0 to 54"
    )
    kind, remedy, _ = by_kind(found)[0]
    assert kind == "deletes"
    assert remedy.lines(CheckedStore("/s", "/s --tiered /t"))[1].endswith(
        "rmqstore export /s --tiered /t messages.parquet --mode DROPMALFORMED --ignore-data-loss"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("commitLogFileSegmentTable", {"TierB-1": "44 to 62"}),
        ("consumeQueueFileSegmentTable", {"TierB-1": "0 to 62"}),  # and deletes its segments
        (None, {"TierA-0": "0 to 73", "TierA-2": "0 to 90", "TierB-1": "0 to 62"}),
    ],
)
def test_what_the_notes_of_the_broker_lack_is_not_served(
    copied: Golden, kind: str | None, expected: dict[str, str]
) -> None:
    """RocketMQ 5.3.3 was tried with each; without any notes, it makes new ones."""
    root = copied("tiered")
    path = root / "config/tieredStoreMetadata.json"
    notes = table_of(path.read_bytes())
    if kind is not None:
        queue = next(name for name in notes[kind] if name.endswith("TierB/1"))
        del notes[kind][queue][max(notes[kind][queue], key=int)]
    for name in (path, path.with_name(f"{path.name}.bak")):
        name.write_text(json.dumps(notes) if kind is not None else "")
    with rmqstore.open(root, tiered=root / "tieredstore") as store:
        found = list(verify(store))
    said = {one.place: one.text for one in found if "does not serve" in one.text}
    for queue, offsets in expected.items():
        assert f"does not serve queue offsets {offsets}" in said[queue]
    assert {kind_of(one) for one in found} <= {"unnoted", "deletes", "tierkeys", "stray"}
    assert not [one for one in found if kind_of(one) == "stray" and "TierB/1" in one.place]


def test_what_the_local_store_still_has_is_named_too(golden_store: Golden, tmp_path: Path) -> None:
    case = Case("tiered", "closed", "COMMIT_LOG", "newest", "tail")
    (found,) = findings(golden_store("tiered"), case, tmp_path / "s")
    assert found.place == "TierA-2"
    assert found.text == (
        "the tier lacks queue offsets 111 to 120; a broker serves them until retention deletes "
        "them in the local store"
    )


@pytest.mark.parametrize("name", ["tiered", "v55-tiered"])
def test_a_whole_one_has_no_findings(
    golden_store: Golden, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = golden_store(name)
    with rmqstore.open(root, tiered=root / "tieredstore") as store:
        assert list(verify(store)) == []
    with rmqstore.open(root / "tieredstore") as store:
        assert list(verify(store)) == []
    assert "the content of the segments of the index is not checked" in caplog.text
    assert "not looked at: messages in tiered storage" not in caplog.text
    require_valid(root)
    assert "not looked at: messages in tiered storage" in caplog.text


def test_without_the_notes_of_the_broker_a_gap_is_named(
    golden_store: Golden, tmp_path: Path
) -> None:
    root = tmp_path / "s"
    case = Case("tiered", "closed", "COMMIT_LOG", "middle", "missing")
    broken_stores.make(golden_store("tiered"), case, root)
    with rmqstore.open(root / "tieredstore") as store:
        found = list(verify(store))
    assert [one.text for one in found] == [
        "the segment ends at 15858, and the next one begins at 31581",
        "a broker does not serve queue offsets 43 to 89, which only the tier had",
    ]
