"""What bytes on disk mean: the layouts, the reference codec and the columnar codec.

Opens no file.
"""
