"""What a broker writes beside its messages: configuration tables and the checkpoint."""
