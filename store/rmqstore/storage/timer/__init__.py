"""The timer wheel and its log: the timed messages that wait for their second."""
