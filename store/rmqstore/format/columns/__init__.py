"""Many records at once: bytes to columns and back, without a loop per record."""
