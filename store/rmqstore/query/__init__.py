"""What is asked of a store, as values: no files, no reading."""
