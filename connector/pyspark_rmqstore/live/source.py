"""The options of running brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark_rmqstore.store_options import STORE_PATHS
from rmqstore.live.location import SECRETS_OF_SERVERS, WHO_ASKS, LiveLocation, require_served
from rmqstore.live.source import BrokerSource
from rmqstore.query.options import GivenOptions

# Options of which the files of a store are needed.
_OF_FILES = (
    "paths", "brokers", "brokerName", *STORE_PATHS, "ignoreLogEnd",
    "msgKey", "msgId", "msgTags", "indexOnly", "maxBytesPerTrigger",
)  # fmt: skip


def parse_source(given: GivenOptions, columns: Sequence[str] | None) -> BrokerSource:
    """Return the running brokers that ``path`` names, and that are to give these columns.

    Raises:
        OptionError: it is no address of name servers, or an option says in vain how to reach them.
        UnsupportedFeatureError: an option is given that only the files of stores can answer.
    """
    names = [name for name in _OF_FILES if name in given]
    if given["scan"] == "commitlog":
        names.append("scan=commitlog")
    if given["includePending"]:
        names.append("includePending")
    location = LiveLocation.parse(given["path"], given["storageOptions"])
    require_served(names, columns or ())
    return BrokerSource(location)


def secrets_in_table(
    paths: Sequence[str], storage_options: Mapping[str, str]
) -> tuple[list[str], str]:
    """Return the secrets among the storage options of a table, and where they belong instead.

    Raises:
        OptionError: an option is unknown, or an address is malformed.
    """
    left = {name: value for name, value in storage_options.items() if name not in WHO_ASKS}
    for path in paths:
        LiveLocation.parse(path, left)
    elsewhere = (
        "leave the secret to the environment variable ROCKETMQ_SECRET_KEY, or give a query all "
        "storageOptions: SELECT … FROM t WITH (storageOptions = …)"
    )
    return sorted({*storage_options} & SECRETS_OF_SERVERS), elsewhere
