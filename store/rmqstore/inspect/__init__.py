"""Checking a store and reporting on it."""
