"""View ``stores``: the stores of a read, their brokers, and which of them are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from rmqstore.errors import RmqStoreError
from rmqstore.read.store_parts import StoreParts
from rmqstore.read.views.pieces import to_batches
from rmqstore.read.views.replicas import brokers_of
from rmqstore.read.views.schema import ViewSpec


def read_stores(sources: Sequence[StoreParts], spec: ViewSpec) -> Iterator[pa.RecordBatch]:
    """Yield a row for each store, by broker; of each broker the store that is read comes first."""
    rows: list[dict[str, object]] = []
    for broker in brokers_of(sources):
        for member in broker.members:
            identity = member.identity
            reasons = list(broker.faults)
            is_chosen = member is broker.chosen
            if not is_chosen and not reasons:
                reasons.append(broker.note(member))
            log_end = None
            try:
                log_end = member.log_end
            except (RmqStoreError, OSError) as err:
                reasons.append(str(err))
            row: dict[str, object] = {
                "brokerName": broker.name,
                "path": member.path,
                "clusterName": identity.cluster,
                "brokerId": identity.broker_id,
                "brokerAddr": identity.address,
                "minOffset": member.log_start,
                "maxOffset": log_end,
                "epoch": member.last_epoch if member.epochs else None,
                "isRead": is_chosen and not broker.faults,
                "reason": "; ".join(reasons) or None,
            }
            rows.append(row)
    yield from to_batches(spec, sources[0], iter(rows))
