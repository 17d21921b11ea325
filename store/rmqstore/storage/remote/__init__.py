"""Stores in object storage and in other file systems, read through ``pyarrow.fs``."""
