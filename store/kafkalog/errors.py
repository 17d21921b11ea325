"""Errors that name places in Kafka's files; the others are those of :mod:`rmqstore.errors`."""

from __future__ import annotations

from rmqstore.errors import CorruptRecordError


class CorruptBatchError(CorruptRecordError):
    """A record batch is damaged. Fields: path (of the segment), offset (position in it), reason."""

    unit = "position"
