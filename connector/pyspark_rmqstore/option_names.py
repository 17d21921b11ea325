"""Spark's option names for the argument names of the core, also in the errors of the core.

The core knows nothing of Spark: its errors say ``fail_on_data_loss=False`` where a user of Spark
has to set ``failOnDataLoss=false``. Every method that Spark calls translates such errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rmqstore.errors import RmqStoreError

SELECTION_ARGUMENTS = {
    "subscribe": "subscribe",
    "subscribePattern": "subscribe_pattern",
    "assign": "assign",
    "startingOffsets": "starting_offsets",
    "endingOffsets": "ending_offsets",
    "startingTimestamp": "starting_timestamp",
    "endingTimestamp": "ending_timestamp",
    "startingOffsetsByTimestamp": "starting_offsets_by_timestamp",
    "endingOffsetsByTimestamp": "ending_offsets_by_timestamp",
    "startingOffsetsByTimestampStrategy": "starting_offsets_by_timestamp_strategy",
}
# Options that some views take.
VIEW_ARGUMENTS = {
    **SELECTION_ARGUMENTS,
    "includeSystemTopics": "include_system_topics",
    "mode": "mode",
    "checkCRC": "check_crc",
    "consumerGroup": "consumer_group",
    "clients": "clients",
    "strategy": "strategy",
    "rooms": "rooms",
}
_OTHER_ARGUMENTS = {
    "storePathCommitLog": "commitlogs",
    "storePathDLedgerCommitLog": "dledger_logs",
    "dLegerSelfId": "dledger_self_id",
    "ignoreLogEnd": "ignore_log_end",
    "brokerName": "broker_name",
    "msgKey": "msg_key",
    "msgId": "msg_id",
    "msgTags": "msg_tags",
    "indexOnly": "index_only",
    "includePending": "include_pending",
    "storageOptions": "storage_options",
    "failOnDataLoss": "fail_on_data_loss",
    "allowSystemTopics": "allow_system_topics",
    "queueNums": "default_queue_nums",
    "queueSelector": "queue_selector",
}
_OPTIONS = {
    argument: option
    for option, argument in (SELECTION_ARGUMENTS | VIEW_ARGUMENTS | _OTHER_ARGUMENTS).items()
    if argument != option
}
# A plain word is a name only if "=" follows. In paths and quoted values there are no names.
_NAMES = "|".join(argument if "_" in argument else f"{argument}(?==)" for argument in _OPTIONS)
_ARGUMENT = re.compile(rf"(?<![\w./'\"-])({_NAMES})(?![\w./'\"-])(=True\b|=False\b|=(?!\S))?")


def in_option_names(text: str) -> str:
    """Return a text of the core with options, and values as Spark writes them, for arguments."""

    def as_option(match: re.Match[str]) -> str:
        value = match[2] or ""
        return _OPTIONS[match[1]] + value.lower().rstrip("=")

    return _ARGUMENT.sub(as_option, text)


@contextmanager
def option_names() -> Iterator[None]:
    """Let errors of the core leave in option names; for use as a context manager or decorator."""
    try:
        yield
    except RmqStoreError as err:
        translated = err.rephrased(in_option_names)
        if translated.args == err.args:
            raise
        raise translated.with_traceback(err.__traceback__) from err.__cause__
