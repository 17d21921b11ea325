"""What a store is made of, as rows: queues, topics, groups, files, and the bare log, queue units and index items."""
