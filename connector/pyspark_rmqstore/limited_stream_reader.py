"""The micro-batch source for PySpark 4.2 and later, which supports limits of triggers."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pyspark_rmqstore.stream_reader import RmqStoreStreamReader


class LimitedStreamReader(RmqStoreStreamReader, SupportsTriggerAvailableNow):
    """Keeps the limits of a trigger, also those of each micro-batch of ``Trigger.AvailableNow``."""
