"""Keep the lag of all consumer groups over days, and name the groups that fall behind or stand.

Usage: python examples/11_lag_audit.py STORE HISTORY [DAYS]

Run it from a timer, such as every hour: each run adds a snapshot to the folder HISTORY, and looks
at those of the last DAYS days (7 by default). It ends with exit code 1 if a group needs a look.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import rmqstore

COLUMNS = "brokerName,consumerGroup,topic,queueId,consumerOffset,brokerOffset,lag,lagMillis"


def main(path: str, history: str, days: str = "7") -> None:
    now = datetime.now(UTC)
    folder = Path(history)
    folder.mkdir(parents=True, exist_ok=True)
    with rmqstore.open(path) as store:
        groups = store.view("groups", columns=COLUMNS).read_all()
    taken = pa.array([now] * len(groups), pa.timestamp("us", "UTC"))
    snapshot = folder / f"{now:%Y%m%dT%H%M%S%f}.parquet"
    partial = snapshot.with_suffix(".partial")
    pq.write_table(groups.append_column("takenAt", taken), partial)
    partial.rename(snapshot)  # a run that is killed leaves no half of a file

    since = pa.scalar(now - timedelta(days=float(days)), pa.timestamp("us", "UTC"))
    kept = pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob("*.parquet"))])
    kept = kept.filter(pc.field("takenAt") >= since)
    print_days(kept)
    found = sorted(findings(kept))
    print("\n".join(found) or "no group stands or falls behind")
    raise SystemExit(1 if found else 0)


def print_days(kept: pa.Table) -> None:
    """Print the largest lag of each group and topic by day."""
    day = pc.strftime(kept["takenAt"], "%Y-%m-%d")
    snapshots = kept.append_column("day", day).group_by(
        ["consumerGroup", "topic", "day", "takenAt"]
    )
    sums = snapshots.aggregate([("lag", "sum")])
    by_day = sums.group_by(["consumerGroup", "topic", "day"]).aggregate([("lag_sum", "max")])
    order = [("consumerGroup", "ascending"), ("topic", "ascending"), ("day", "ascending")]
    for row in by_day.sort_by(order).to_pylist():
        lag = "unknown" if row["lag_sum_max"] is None else row["lag_sum_max"]
        print(f"{row['day']}  {row['consumerGroup']:30} {row['topic']:30} {lag:>12}")


def findings(kept: pa.Table) -> list[str]:
    """Return what is wrong with the groups, judged by all snapshots and not by the last one.

    A group that has a lag now and then is at work. One that stands does not move although there are
    messages for it, and one that falls behind has a larger lag in each snapshot than before.
    """
    series: dict[str, list[tuple[int, int]]] = {}
    for row in kept.sort_by("takenAt").to_pylist():
        queue = f"{row['topic']}-{row['queueId']} of {row['brokerName']}"
        point = (row["consumerOffset"], row["lag"] or 0)
        series.setdefault(f"{row['consumerGroup']} in {queue}", []).append(point)
    found = []
    for where, points in series.items():
        offsets, lags = zip(*points, strict=True)
        if len(points) > 1 and offsets[0] == offsets[-1] and lags[-1] > 0:
            found.append(f"STANDS  {where}: at {offsets[-1]}, lag {lags[-1]}")
        elif len(points) > 2 and all(early < late for early, late in pairwise(lags)):
            found.append(f"BEHIND  {where}: lag {lags[0]} to {lags[-1]}")
    return found


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (rmqstore.RmqStoreError, OSError, ValueError) as err:
        print(f"error: {err}", file=sys.stderr)
        raise SystemExit(2) from err
