"""SQL92 filters on properties: RocketMQ's grammar, its three-valued rules, its numbers.

Opens no file.
"""
