"""What messages in RocketMQ's own topics say: retries, dead letters and traces."""
