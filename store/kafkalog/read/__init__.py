"""Reads partitions: windows of batches, transactions, look-ups by time, and Arrow."""
