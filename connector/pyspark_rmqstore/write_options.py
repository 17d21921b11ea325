"""What the options of a write mean together, as checked values.

Their names, parsers and defaults are in ``rmqstore.query.options``. Reads, and the process that
Spark asks for a schema, import ``options`` alone, and with it no writer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_rmqstore.option_names import SPARK_OWN, option_names
from pyspark_rmqstore.paths import absolute_path
from pyspark_rmqstore.store_options import given_conf, paths_or_root
from rmqstore.errors import OptionError
from rmqstore.query.options import WRITE_OPTIONS, GivenOptions
from rmqstore.storage.broker.store_config import StoreConfig, sizes_of
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.remote_location import is_live
from rmqstore.write.messages import WriteSpec

_NO_PATH = (
    "name the root of the store, the folder that holds commitlog/: save('/path/to/store'). "
    "Spark does not pass the options of a table to a Python data source that is written to: "
    "use INSERT INTO t WITH (path = '/path/to/store') …, "
    "or insert into a temporary view created with this option"
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of one write into a store, validated."""

    path: str
    spec: WriteSpec
    config: StoreConfig
    txn: tuple[str, int] | None
    conf: BrokerSettings | None = None
    broker_stopped: bool = False


@option_names()
def writes_to_brokers(options: Mapping[str, str]) -> bool:
    """Return whether a write is to running brokers, whose options ``live.sink`` parses."""
    return is_live(GivenOptions(options, WRITE_OPTIONS, SPARK_OWN)["path"])


@option_names()
def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a batch write into a store.

    Raises:
        OptionError: a key is unknown, a value out of its domain, or two contradict each other.
    """
    given = GivenOptions(options, WRITE_OPTIONS, SPARK_OWN)
    if "storageOptions" in given:
        raise OptionError("storageOptions: for running brokers; a store is written to on a disk")
    conf = given_conf(given)
    paths = paths_or_root(given, conf, _NO_PATH)
    if len(paths) != 1:
        raise OptionError(f"path: only one store can be written to, but {len(paths)} are named")
    app_id = given["txnAppId"]
    version = given["txnVersion"]
    if (app_id is None) != (version is None) or app_id == "":
        raise OptionError("txnAppId and txnVersion: give both, or none")
    if version is not None and not re.fullmatch(r"[0-9]+", version.strip()):
        raise OptionError(f"txnVersion {version!r}: must be a non-negative integer")
    defaults = WriteSpec()
    return WriteOptions(
        path=absolute_path(paths[0]),
        spec=WriteSpec(
            topic=given["topic"] or None,
            default_queue_nums=given["queueNums"] or defaults.default_queue_nums,
            queue_selector=given["queueSelector"],
            compression=given["compression"],
            compress_over=given["compressMsgBodyOverHowmuch"],
            store_host=given["storeHost"],
            born_host=given["bornHost"],
            make_uniq_key=given["uniqKey"] == "make",
            allow_system_topics=given["allowSystemTopics"],
            broker_version=given["brokerVersion"],
        ),
        config=sizes_of(conf).updated(  # which passes over options that are no settings
            {option.name: given[option.name] for option in WRITE_OPTIONS if option.name in given}
        ),
        txn=(app_id, int(version)) if app_id else None,
        conf=conf,
        broker_stopped=given["brokerStopped"],
    )


def parse_stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a streaming write into a store, as :func:`parse_write_options`."""
    parsed = parse_write_options(options)
    if parsed.txn is not None:
        raise OptionError(
            "txnAppId and txnVersion: a micro-batch is identified by its query and number; "
            "use these options for batch writes, as in foreachBatch"
        )
    return parsed
