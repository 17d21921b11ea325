"""How records follow one another in a file of the log."""
