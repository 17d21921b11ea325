"""Spark's option names for the argument names of the core, also in the errors of the core.

The core knows nothing of Spark: its errors name the argument ``fail_on_data_loss=False`` where a
user of Spark has to set ``failOnDataLoss=false``. Every method that Spark calls names it so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rmqstore.errors import Argument, RmqStoreError, argument_names

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
    "brokerVersion": "broker_version",
    "timeZone": "time_zone",
    "brokerStopped": "broker_stopped",
}
_OPTIONS = {
    argument: option
    for option, argument in (SELECTION_ARGUMENTS | VIEW_ARGUMENTS | _OTHER_ARGUMENTS).items()
    if argument != option
}


def option_of(argument: Argument) -> str:
    """Return the option that stands for an argument of the core, with its value as Spark has it."""
    name = _OPTIONS.get(argument.name, argument.name)
    if argument.value in (None, ""):
        return name
    value = str(argument.value)
    return f"{name}={value.lower() if isinstance(argument.value, bool) else value}"


@contextmanager
def option_names() -> Iterator[None]:
    """Let errors and warnings of the core leave in option names.

    For use as a context manager or decorator.
    """
    try:
        with argument_names(option_of):
            yield
    except RmqStoreError as err:
        translated = err.named(option_of)
        if translated.args == err.args:
            raise
        raise translated.with_traceback(err.__traceback__) from err.__cause__
