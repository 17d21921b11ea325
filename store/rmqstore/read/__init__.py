"""Reading a store: planning, scans, look-ups, views, and following a store that is written to."""
