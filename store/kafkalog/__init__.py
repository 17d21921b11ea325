"""Reads the log directories of Apache Kafka as Arrow batches, without a broker."""

from importlib import import_module
from typing import TYPE_CHECKING

from kafkalog.errors import CorruptBatchError

if TYPE_CHECKING:
    from kafkalog.opening import (
        LogDirs,
        open_log_dirs as open,  # noqa: A004 - `kafkalog.open(path)` reads as it should
    )
    from kafkalog.partition import Partition
    from kafkalog.scan import IsolationLevel, Scan
    from kafkalog.storage.names import TopicPartition
    from rmqstore.query.damage import Mode

__all__ = [
    "CorruptBatchError",
    "IsolationLevel",
    "LogDirs",
    "Mode",
    "Partition",
    "Scan",
    "TopicPartition",
    "open",
]

# Imported when first asked for: Spark starts processes that need a few modules of the package.
_HOMES = {
    "IsolationLevel": "scan:IsolationLevel",
    "LogDirs": "opening:LogDirs",
    "Mode": "opening:Mode",
    "Partition": "partition:Partition",
    "Scan": "scan:Scan",
    "TopicPartition": "storage.names:TopicPartition",
    "open": "opening:open_log_dirs",
}


def __getattr__(name: str) -> object:
    """Return a name of the package, imported only now."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, attribute = _HOMES[name].partition(":")
    value: object = getattr(import_module(f"{__name__}.{home}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the names of the package, imported or not."""
    return sorted({*globals(), *__all__})
