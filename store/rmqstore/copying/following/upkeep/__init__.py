"""What is done to a copy beside its log: tables, and the deletion of old files."""
