"""Following one broker or all brokers of a cluster: calls, progress, status and metrics."""
