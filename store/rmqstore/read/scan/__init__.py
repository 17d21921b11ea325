"""Scans by queue, by log and of single records: units to checked Arrow batches."""
