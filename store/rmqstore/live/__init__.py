"""Running brokers over the network: what they hold, and reads of their queues."""
