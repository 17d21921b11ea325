"""All views by name."""
