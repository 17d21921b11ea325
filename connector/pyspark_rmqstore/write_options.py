"""Write options: keys, defaults, and how their text is parsed. Unknown keys are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_rmqstore.option_values import (
    absolute_path,
    boolean,
    count,
    known_options,
    option_names,
    paths_or_root,
    word,
)
from rmqstore.errors import OptionError
from rmqstore.storage.broker.store_config import StoreConfig, read_conf, sizes_of
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.write.messages import MACHINE_ROOM_SELECTOR, SELECTORS, WriteSpec

_SIZES = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
    "messageIndexEnable",
)  # fmt: skip
_OTHERS = (
    "topic", "queueNums", "queueSelector", "compression", "compressMsgBodyOverHowmuch", "storeHost",
    "bornHost", "uniqKey", "allowSystemTopics", "txnAppId", "txnVersion", "conf",
    "brokerVersion", "brokerStopped",
)  # fmt: skip
_NO_PATH = (
    "name the root of the store, the folder that holds commitlog/: save('/path/to/store'). "
    "Spark does not pass the options of a table to a Python data source that is written to: "
    "use INSERT INTO t WITH (path = '/path/to/store') …, "
    "or insert into a temporary view created with this option"
)
_COMPRESSIONS = ("none", "zlib", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of one write, validated."""

    path: str
    spec: WriteSpec
    config: StoreConfig
    txn: tuple[str, int] | None
    conf: BrokerSettings | None = None
    broker_stopped: bool = False


@option_names()
def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a batch write.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
    """
    given = known_options(options, (*_SIZES, *_OTHERS))
    conf = read_conf(absolute_path(given["conf"])) if "conf" in given else None
    paths = paths_or_root(options, conf, _NO_PATH)
    if len(paths) != 1:
        raise OptionError(f"path: only one store can be written to, but {len(paths)} are named")
    defaults = WriteSpec()
    queue_nums = count(given, "queueNums")
    compress_over = count(given, "compressMsgBodyOverHowmuch")
    path = absolute_path(paths[0])
    is_refused = given.get("queueSelector", "").lower() == MACHINE_ROOM_SELECTOR.lower()
    selector = MACHINE_ROOM_SELECTOR if is_refused else word(given, "queueSelector", SELECTORS)
    return WriteOptions(
        path=path,
        spec=WriteSpec(
            topic=given.get("topic") or None,
            default_queue_nums=defaults.default_queue_nums if queue_nums is None else queue_nums,
            queue_selector=selector,
            compression=word(given, "compression", _COMPRESSIONS),
            compress_over=defaults.compress_over if compress_over is None else compress_over,
            store_host=given.get("storeHost", defaults.store_host),
            born_host=given.get("bornHost"),
            make_uniq_key=word(given, "uniqKey", ("make", "keep")) == "make",
            allow_system_topics=boolean(given, "allowSystemTopics", default=False),
            broker_version=given.get("brokerVersion"),
        ),
        config=sizes_of(conf).updated({name: given[name] for name in _SIZES if name in given}),
        txn=_txn(given),
        conf=conf,
        broker_stopped=boolean(given, "brokerStopped", default=False),
    )


def parse_stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a streaming write; raises as :func:`parse_write_options` does."""
    parsed = parse_write_options(options)
    if parsed.txn is not None:
        raise OptionError(
            "txnAppId and txnVersion: a micro-batch is identified by its query and number; "
            "use these options for batch writes, as in foreachBatch"
        )
    return parsed


def _txn(given: Mapping[str, str]) -> tuple[str, int] | None:
    app_id, version = given.get("txnAppId"), given.get("txnVersion")
    if app_id is None and version is None:
        return None
    if not app_id or version is None:
        raise OptionError("txnAppId and txnVersion: give both, or none")
    if not version.strip().isascii() or not version.strip().isdigit():
        raise OptionError(f"txnVersion {version!r}: must be a non-negative integer")
    return app_id, int(version)
