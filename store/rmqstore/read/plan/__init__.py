"""Ranges and samples of queues and of the log, for planning."""
