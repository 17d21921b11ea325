"""Running brokers in Spark: reads, streams and writes of ``rocketmq://``.

The other modules of the connector know this package by name alone, and import it where a path is
the address of name servers.
"""
