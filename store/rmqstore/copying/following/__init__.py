"""Follows a live broker: an exact copy of its log over the port for replicas, as a slave has it."""
