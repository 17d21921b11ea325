"""Move a cluster: copy the store of each broker exactly, and compare what both clusters have.

Usage: python examples/12_migrate_cluster.py BROKERS TARGET

BROKERS is a JSON or TOML file with stores by broker name. Copies go to TARGET/NAME, beside a file
TARGET/brokers.json that names them. Run it first while the old brokers serve, to see how long it
takes; then stop them, remove TARGET, and run it again: exit code 0 says that nothing is missing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rmqstore


def main(brokers: str, target: str) -> None:
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    copies = {}
    with rmqstore.open_cluster(brokers) as cluster:
        # Of a master and its replicas only the one with the newest messages is read and copied.
        for name, store in cluster.stores.items():
            copies[name] = str(folder / name)
            if not Path(copies[name]).exists():  # one that was interrupted continues where it was
                rmqstore.copy(store.paths.root, copies[name])
                print(f"{store.paths.root} is copied to {copies[name]}")
        (folder / "brokers.json").write_text(json.dumps(copies, indent=2))
        with rmqstore.open_cluster(copies) as copied:
            differences = [
                difference
                for view, key, values in (
                    ("queues", ("topic", "queueId"), ("minOffset", "maxOffset")),
                    ("groups", ("consumerGroup", "topic", "queueId"), ("consumerOffset", "lag")),
                )
                for difference in differing(cluster, copied, view, key, values)
            ]
    print("\n".join(differences) or f"{folder / 'brokers.json'}: the same queues and offsets")
    raise SystemExit(1 if differences else 0)


def differing(
    old: rmqstore.StoreCluster,
    new: rmqstore.StoreCluster,
    view: str,
    key: tuple[str, ...],
    values: tuple[str, ...],
) -> list[str]:
    """Return where a view of two clusters differs."""
    options = {"include_system_topics": True} if view == "queues" else {}
    sides = []
    for cluster in (old, new):
        names = ("brokerName", *key)
        rows = cluster.view(view, columns=[*names, *values], **options).read_all().to_pylist()
        sides.append({
            "/".join(str(row[name]) for name in names): [row[name] for name in values]
            for row in rows
        })  # fmt: skip
    before, after = sides
    return [
        f"{view} {where}: {before.get(where)} became {after.get(where)}"
        for where in sorted(before.keys() | after.keys())
        if before.get(where) != after.get(where)
    ]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        main(*sys.argv[1:])
    except (rmqstore.RmqStoreError, OSError) as err:
        print(f"error: {err}", file=sys.stderr)
        raise SystemExit(2) from err
