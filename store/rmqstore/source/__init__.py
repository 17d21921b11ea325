"""Sources of messages: they plan a request as tasks, and they can be followed while they grow."""
