"""Where bytes lie: folders, file names and mapped files. Nothing here interprets the bytes."""
