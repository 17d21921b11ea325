"""What bytes mean: layouts, the reference codec, the columnar one. Opens no file."""
