"""The verb that follows live brokers."""

from rmqstore.cli.follow.verb import follow_brokers

__all__ = ["follow_brokers"]
