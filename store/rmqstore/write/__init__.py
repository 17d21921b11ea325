"""Writing to a store: messages to records, the one commit, dispatching, repair."""
