"""Brings log, queues and index into agreement: dispatch of records, repair and rebuild."""
