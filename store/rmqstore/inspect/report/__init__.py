"""One HTML page about a store: numbers, charts and the findings of a check."""
