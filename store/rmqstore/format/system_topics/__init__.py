"""What messages in RocketMQ's own topics say: retries and dead letters."""
