"""Messages in files of other formats: Parquet and JSON Lines.

Both are processed batch by batch, and a file gets its name only when it is complete.
"""
