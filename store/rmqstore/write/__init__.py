"""Writing to a store: encoding messages, the commit, dispatching to queues and index, and repair."""
