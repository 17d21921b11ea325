"""Views of a store as rows: queues, topics, groups, files, and raw log records, queue units and index items."""
