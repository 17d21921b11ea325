"""One page about a store, for people: numbers, charts, what a check found."""
