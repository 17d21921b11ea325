"""Look-ups by key and id: the index proposes candidates, the records decide."""
