"""Where the bytes of partitions are: log directories, segments, indexes and log ends."""
