"""Columns to records: the bytes of many records, made without a loop per record."""
