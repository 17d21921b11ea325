"""Where the bytes of a store lie: files, the broker's tables, the log, queues and index, and where they end."""
