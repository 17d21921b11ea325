"""What the bytes of record batches mean; opens no file."""
