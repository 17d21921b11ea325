"""Keys of options, whatever their case, and values: words, numbers, durations, sizes and paths.

The core knows nothing of Spark: its errors name the argument ``fail_on_data_loss=False`` where a
user of Spark has to set ``failOnDataLoss=false``. Every method that Spark calls names it so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path

from rmqstore.errors import (
    OptionError,
    UnsupportedFeatureError,
    argument_names,
    rename_arguments,
)
from rmqstore.query.times import time_zone
from rmqstore.storage.broker.folders import read_brokers
from rmqstore.storage.broker.store_config import root_of
from rmqstore.storage.files.paths import BrokerSettings
from rmqstore.storage.files.storage import path_of
from rmqstore.storage.remote.location import is_uri, local_path, require_known

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

# Options that Spark itself passes to a source, or that users set for Spark.
_SPARK_OWN = {"path", "paths", "queryname", "checkpointlocation", "timezone", "recursivefilelookup"}

KAFKA = "kafka"  # option columns: those of Spark's Kafka source

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d|)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)

# Options of Spark's Kafka source that say how to reach Kafka, which no store asks for.
_KAFKA_OWN = re.compile(
    r"(kafka|kafkaConsumer|fetchOffset)\..*|groupIdPrefix", re.IGNORECASE | re.DOTALL
)


def option_of(argument: str, value: str | None) -> str:
    """Return the option that stands for an argument of the core, with its value as Spark has it."""
    name = _OPTIONS.get(argument, argument)
    if not value:
        return name
    return f"{name}={value.lower() if value in ('True', 'False') else value}"


@contextmanager
def option_names() -> Iterator[None]:
    """Let errors and warnings of the core leave in option names.

    For use as a context manager or decorator.
    """
    with argument_names(lambda text: rename_arguments(text, option_of)):
        yield


def without_kafka_own(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without those that only a job that reads Kafka needs, if it reads as that one.

    With ``columns=kafka`` a job need not change its options. They may hold secrets.
    """
    columns = next((value for key, value in options.items() if key.lower() == "columns"), "")
    if columns.strip().lower() != KAFKA:
        return dict(options)
    return {key: value for key, value in options.items() if not _KAFKA_OWN.fullmatch(key)}


def known_options(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the options by their documented spelling, without Spark's own.

    Raises:
        OptionError: a key is unknown.
    """
    spellings = {name.lower(): name for name in names}
    given = {}
    for key, value in options.items():
        lower = key.lower()
        if lower in _SPARK_OWN and lower not in spellings:
            continue
        if lower not in spellings:
            known = {"path": "path", **spellings}
            close = get_close_matches(lower, known, n=1)
            suggestion = f", did you mean {known[close[0]]}?" if close else ";"
            every = ", ".join(sorted(known.values()))
            raise OptionError(f"unknown option {key!r}{suggestion} known options are: {every}")
        given[spellings[lower]] = value
    return given


def stated_paths(options: Mapping[str, str], remedy: str) -> list[str]:
    """Return the paths that the options name, at least one.

    Args:
        options: the options as Spark passes them.
        remedy: what to do if no path is named, for the error.

    Raises:
        OptionError: no path is named.
    """
    by_lower = {key.lower(): value for key, value in options.items()}
    values = [by_lower["path"]] if by_lower.get("path") else []
    value = by_lower.get("paths")
    if value:
        try:
            paths = json.loads(value)
        except json.JSONDecodeError as err:
            raise OptionError(f"paths {value!r}: must be a JSON list of paths ({err})") from err
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise OptionError(f"paths {value!r}: must be a JSON list of paths")
        values += paths
    if not values:
        raise OptionError(f"path is missing: {remedy}")
    return values


def paths_or_root(
    options: Mapping[str, str], conf: BrokerSettings | None, remedy: str
) -> list[str]:
    """Return the paths that the options name, or else the root that a broker's file names.

    Raises as :func:`stated_paths` does.
    """
    names_path = any(key.lower() in ("path", "paths") and value for key, value in options.items())
    if conf is None or names_path:
        return stated_paths(options, remedy)
    return [str(root_of(None, conf))]


def absolute_path(path: str) -> str:
    """Return an absolute local path, which a ``file:`` URI may name; refuse other URIs."""
    name = Path(local_path(path))
    if _SCHEME.match(str(name)):
        raise UnsupportedFeatureError(
            f"path {path!r}: only local files are supported, by a path or as file:///…"
        )
    return str(name.expanduser().absolute())


def store_path(path: str) -> str:
    """Return the absolute path of a store to read, or its URI in another file system."""
    require_known(path)
    return str(path_of(path.rstrip("/"))) if is_uri(path) else absolute_path(path)


def brokers(value: str) -> dict[str, tuple[str, ...]]:
    """Return the paths of each broker's stores from a JSON object, or from a file that is named."""
    return read_brokers(value if value.lstrip().startswith("{") else absolute_path(value))


def storage_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return how to reach the storage of a URI. An error does not show the text: it has secrets."""
    try:
        options = json.loads(given.get("storageOptions", "{}"))
    except json.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise OptionError('storageOptions: must be a JSON object like {"region": "eu-west-1"}')
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in options.items()
        if value is not None
    }


def word(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return the word that an option holds, by default the first of ``words``."""
    value = given.get(name, words[0])
    for word in words:
        if value.lower() == word.lower():
            return word
    raise OptionError(f"{name} {value!r}: must be one of {', '.join(words)}")


def one_or_many(given: Mapping[str, str], name: str) -> str | list[str] | None:
    """Return the text that an option holds, or the texts of a JSON list."""
    value = given.get(name)
    if value is None or not value.startswith("["):
        return value
    try:
        values = json.loads(value)
    except json.JSONDecodeError as err:
        raise OptionError(
            f'{name} {value!r}: must be one text, or a JSON list like ["a","b"] ({err})'
        ) from err
    if not all(isinstance(text, str) for text in values):
        raise OptionError(f"{name} {value!r}: must be a JSON list of texts")
    return list(values)


def zone_of(name: str | None) -> AbstractContextManager[None]:
    """Return a context in which times without a zone are in that of option ``timeZone``, if any."""
    return nullcontext() if name is None else time_zone(name)


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of an option that is true or false."""
    value = str(given.get(name, default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} {value!r}: must be true or false")
    return value == "true"


def count(given: Mapping[str, str], name: str) -> int | None:
    """Return the positive integer that an option holds, or None if it is not given."""
    value = given.get(name)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]+", value.strip()) or int(value) < 1:
        raise OptionError(f"{name} {value!r}: must be a positive integer")
    return int(value)


def offsets_per_trigger(given: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the most and the least offsets of a trigger of a stream, None where none is given."""
    most, least = count(given, "maxOffsetsPerTrigger"), count(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    return most, least


def duration(given: Mapping[str, str], name: str, default: str) -> float:
    """Return a duration in seconds. A number without a unit counts milliseconds, as in Spark."""
    value = given.get(name, default)
    parts = _DURATION.fullmatch(value.strip())
    if not parts:
        raise OptionError(f"{name} {value!r}: must be a duration such as 15m, 30s or 500ms")
    return int(parts[1]) * _SECONDS[parts[2].lower() or "ms"]


def size(given: Mapping[str, str], name: str, default: str) -> int:
    """Return a size in bytes, which may be given with a unit."""
    value = given.get(name, default)
    parts = _SIZE.fullmatch(value.strip())
    if not parts or not int(parts[1]):
        raise OptionError(
            f"{name} {value!r}: must be a number of bytes, or a size with a unit such as 128m"
        )
    return int(parts[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[parts[2].lower()]
