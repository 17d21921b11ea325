"""Where the log and the queues of a store end, found in memory as a recovery finds it on disk."""
