"""View ``files``: what it says of the files of a store."""

from __future__ import annotations

import rmqstore
from goldens import Golden


def test_files_of_log_and_index_have_the_times_of_their_records(golden_store: Golden) -> None:
    with rmqstore.open(golden_store("live")) as store:
        records = store.scan(
            scan="commitlog",
            columns=["commitLogOffset", "storeTimestamp"],
            include_system_topics=True,
        ).read_all()
        rows = store.view("files").read_all().to_pylist()
    stored = list(zip(*(column.to_pylist() for column in records.columns), strict=True))
    files = [row for row in rows if row["kind"] == "commitlog"]
    assert len(files) == 3
    for row in files:
        own = [time for at, time in stored if row["rangeStart"] <= at < row["rangeEnd"]]
        assert (row["firstStoreTimestamp"], row["lastStoreTimestamp"]) == (min(own), max(own))
    times = {time for _, time in stored}
    indexes = [row for row in rows if row["kind"] == "index" and row["state"] == "live"]
    assert indexes
    assert all(row["firstStoreTimestamp"] in times for row in indexes)
    assert {row["firstStoreTimestamp"] for row in rows if row["kind"] == "consumequeue"} == {None}
