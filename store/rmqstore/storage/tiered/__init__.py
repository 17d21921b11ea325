"""Tiered storage: the messages that a broker has moved out of its CommitLog."""
