"""Views of a store as rows: queues, topics, groups, files, log records, units and index items."""
