"""Names of options: those of Spark and of Kafka, and those that errors of the core name.

The core knows nothing of Spark: its errors name the argument ``fail_on_data_loss=False`` where a
user of Spark has to set ``failOnDataLoss=false``. Every method that Spark calls names it so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rmqstore.errors import argument_names, rename_arguments
from rmqstore.query.options import KAFKA, OPTION_OF_ARGUMENT

# Options that Spark itself passes to a source, or that users set for Spark.
SPARK_OWN: Final = frozenset(("queryname", "checkpointlocation", "timezone", "recursivefilelookup"))

# Options of Spark's Kafka source that say how to reach Kafka, which no store asks for.
KAFKA_OWN: Final = re.compile(
    r"(kafka|kafkaConsumer|fetchOffset)\..*|groupIdPrefix", re.IGNORECASE | re.DOTALL
)


def option_of(argument: str, value: str | None) -> str:
    """Return the option that stands for an argument of the core, with its value as Spark has it."""
    option = OPTION_OF_ARGUMENT.get(argument)
    name = argument if option is None else option.name
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
    """Return options without those for Kafka alone, if the read has the columns of Kafka.

    With ``columns=kafka`` a job need not change its options. They may hold secrets.
    """
    columns = next((value for key, value in options.items() if key.lower() == "columns"), "")
    if columns.strip().lower() != KAFKA:
        return dict(options)
    return {key: value for key, value in options.items() if not KAFKA_OWN.fullmatch(key)}
