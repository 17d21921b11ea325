"""The readers of streams that the installed PySpark can drive, as its API for them is growing.

PySpark 4.0 and 4.1 neither limit a trigger nor report how far a query has got.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.option_names import option_names
from pyspark_rmqstore.options import StreamOptions
from pyspark_rmqstore.stream_reader import RmqStoreStreamReader
from rmqstore.errors import UnsupportedFeatureError

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

if TYPE_CHECKING or HAS_LIMITS:

    class LimitedStreamReader(RmqStoreStreamReader, SupportsTriggerAvailableNow):
        """Keeps the limits of a trigger, also those of each batch of ``Trigger.AvailableNow``."""


class UnlimitedStreamReader(RmqStoreStreamReader):
    """Reads everything that is available in every trigger."""

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        limits = {
            "maxOffsetsPerTrigger": options.triggers.max_rows,
            "maxBytesPerTrigger": options.triggers.max_bytes,
            "minOffsetsPerTrigger": options.triggers.min_rows,
        }
        named = [name for name, value in limits.items() if value is not None]
        if named:
            raise UnsupportedFeatureError(
                f"{', '.join(named)}: "
                "limits on triggers of a Python data source need PySpark 4.2 or later; "
                "without these options a trigger reads everything that is available"
            )
        super().__init__(schema, options)
        self._start: dict[str, Any] | None = None  # of the next micro-batch, once Spark gave it

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        self._start = super().initialOffset()
        return self._start

    @option_names()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - of PySpark 4.0 and 4.1
        """Return where the next micro-batch ends.

        After a restart Spark does not report where the query has got to before it plans a
        micro-batch. Planning then compares both ends and reports what was lost.
        """
        if self._start is not None:
            return self.next_offset(self._start, is_limited=False)
        return self._stream.answer(lambda polled: polled.json())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        self._start = end
        return super().partitions(start, end)


def stream_reader(schema: StructType, options: StreamOptions) -> DataSourceStreamReader:
    """Return a reader of micro-batches, with limits from PySpark 4.2 on.

    Raises:
        UnsupportedFeatureError: the options set limits, and the installed PySpark supports none.
    """
    kind = LimitedStreamReader if HAS_LIMITS else UnlimitedStreamReader
    return kind(schema, options)
