"""Checks of a store, and reports about it."""
