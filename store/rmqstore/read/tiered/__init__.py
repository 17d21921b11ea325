"""Reads tiered storage, alone or before the local store that it continues."""
