"""Reads Apache RocketMQ stores as Arrow batches, and appends to them, without a broker.

Where help or a message names a page such as ``docs/views.md``, that page is in the folder ``docs``
of this package, and of a clone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rmqstore.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    CommitError,
    CorruptConfigError,
    CorruptIndexError,
    CorruptQueueError,
    CorruptRecordError,
    IllegalMessageError,
    MessageNotFoundError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    RemoteReadError,
    RmqStoreError,
    StoreFormatError,
    StoreLockedError,
    StoreStateError,
    UnsupportedFeatureError,
)

if TYPE_CHECKING:
    from rmqstore import polars
    from rmqstore.copying.copier import copy
    from rmqstore.format.schema import Message
    from rmqstore.live.live_cluster import LiveCluster
    from rmqstore.live.opening import open_live
    from rmqstore.live.writer import LiveWriter
    from rmqstore.read.store_queues import QueueInfo
    from rmqstore.replica.cluster import ClusterProgress, follow, follow_cluster
    from rmqstore.replica.state import FollowProgress, follow_cluster_status, follow_status
    from rmqstore.storage.broker.store_config import StoreConfig, read_properties
    from rmqstore.store.cluster import StoreCluster
    from rmqstore.store.message_store import MessageStore
    from rmqstore.store.opening import (
        create,
        open_cluster,
        open_for as open,  # noqa: A004 - `rmqstore.open(path)` reads as it should
    )
    from rmqstore.store.scan import Scan
    from rmqstore.write.messages import WriteSpec
    from rmqstore.write.writer import StoreWriter

__version__ = "1.0.0"

__all__ = [
    "BrokerRefusedError",
    "BrokerUnreachableError",
    "ClusterProgress",
    "CommitError",
    "CorruptConfigError",
    "CorruptIndexError",
    "CorruptQueueError",
    "CorruptRecordError",
    "FollowProgress",
    "IllegalMessageError",
    "LiveCluster",
    "LiveWriter",
    "Message",
    "MessageNotFoundError",
    "MessageStore",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "OptionError",
    "QueueInfo",
    "RemoteReadError",
    "RmqStoreError",
    "Scan",
    "StoreCluster",
    "StoreConfig",
    "StoreFormatError",
    "StoreLockedError",
    "StoreStateError",
    "StoreWriter",
    "UnsupportedFeatureError",
    "WriteSpec",
    "__version__",
    "copy",
    "create",
    "follow",
    "follow_cluster",
    "follow_cluster_status",
    "follow_status",
    "open",
    "open_cluster",
    "open_live",
    "polars",
    "read_properties",
]

# Imported when first asked for: Spark starts processes that need a few modules of the package, and
# none of these.
_HOMES = {
    "ClusterProgress": "replica.cluster:ClusterProgress",
    "FollowProgress": "replica.state:FollowProgress",
    "LiveCluster": "live.live_cluster:LiveCluster",
    "LiveWriter": "live.writer:LiveWriter",
    "Message": "format.schema:Message",
    "MessageStore": "store.message_store:MessageStore",
    "QueueInfo": "read.store_queues:QueueInfo",
    "Scan": "store.scan:Scan",
    "StoreCluster": "store.cluster:StoreCluster",
    "StoreConfig": "storage.broker.store_config:StoreConfig",
    "StoreWriter": "write.writer:StoreWriter",
    "WriteSpec": "write.messages:WriteSpec",
    "copy": "copying.copier:copy",
    "create": "store.opening:create",
    "follow": "replica.cluster:follow",
    "follow_cluster": "replica.cluster:follow_cluster",
    "follow_cluster_status": "replica.state:follow_cluster_status",
    "follow_status": "replica.state:follow_status",
    "open": "store.opening:open_for",
    "open_cluster": "store.opening:open_cluster",
    "open_live": "live.opening:open_live",
    "polars": "polars",
    "read_properties": "storage.broker.store_config:read_properties",
}


def __getattr__(name: str) -> object:
    """Return a name of the package, imported on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, attribute = _HOMES[name].partition(":")
    module = import_module(f"{__name__}.{home}")
    value: object = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the package, imported or not."""
    return sorted({*globals(), *__all__})
