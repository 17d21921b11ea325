"""Conditions on columns: which rows meet them, and what they leave of a read.

Values in, values out; no files.
"""
