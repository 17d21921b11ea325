"""Live copies of brokers over the network: what `rmqstore follow` runs."""
