"""ConsumeQueues of every kind."""
