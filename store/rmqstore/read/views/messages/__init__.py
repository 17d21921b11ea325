"""Views of messages: what some of them say, as rows."""
