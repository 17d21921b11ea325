"""Where bytes lie: folders, names, mapped files. Knows no meaning of the bytes."""
