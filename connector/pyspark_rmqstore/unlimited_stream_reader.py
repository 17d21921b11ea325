"""The micro-batch source for PySpark 4.0 and 4.1.

They neither limit a trigger nor tell how far a query has got.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_rmqstore.options import StreamOptions
from pyspark_rmqstore.stream_reader import RmqStoreStreamReader
from rmqstore.errors import UnsupportedFeatureError


class UnlimitedStreamReader(RmqStoreStreamReader):
    """Reads everything that is available in every trigger."""

    def __init__(self, schema: StructType, options: StreamOptions) -> None:
        _require_no_limits(options)
        super().__init__(schema, options)
        self._start: dict[str, Any] | None = None  # of the next micro-batch, once Spark has told it

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        self._start = super().initialOffset()
        return self._start

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802 - of PySpark 4.0 and 4.1
        """Return how far the next micro-batch reaches.

        After a restart Spark does not tell where the query has got to before it plans a
        micro-batch. Planning then compares both ends and reports what was lost.
        """
        if self._start is not None:
            return self.next_offset(self._start, is_limited=False)
        self._stores.answer(self._stores.look)
        return self.reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch, the same ones if it is planned again."""
        self._start = end
        return super().partitions(start, end)


def _require_no_limits(options: StreamOptions) -> None:
    limits = {
        "maxOffsetsPerTrigger": options.max_rows,
        "maxBytesPerTrigger": options.max_bytes,
        "minOffsetsPerTrigger": options.min_rows,
    }
    named = [name for name, value in limits.items() if value is not None]
    if named:
        raise UnsupportedFeatureError(
            f"{', '.join(named)}: "
            "limits on triggers of a Python data source need PySpark 4.2 or later; "
            "without these options a trigger reads everything that is available"
        )
