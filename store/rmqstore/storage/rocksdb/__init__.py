"""RocksDB databases that a broker keeps beside its files."""
