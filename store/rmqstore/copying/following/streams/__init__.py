"""The port for replicas: a connection to it, and the bytes of its two protocols."""
