"""What a broker stores besides messages: configuration tables and the checkpoint."""
