"""The micro-batch source for PySpark 4.2 and later, which asks a source to keep limits."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from pyspark_rmqstore.stream_reader import RmqStoreStreamReader


class LimitedStreamReader(RmqStoreStreamReader, SupportsTriggerAvailableNow):
    """Keeps the limits of a trigger, and comes to an end under ``Trigger.AvailableNow`` in as many as that takes."""
