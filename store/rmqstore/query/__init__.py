"""What a read asks for, as values. Nothing here opens a file."""
