"""Writing to a store: encoding, the commit, dispatching to queues and index, and repair."""
