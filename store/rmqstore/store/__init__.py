"""The public API: one store, or those of several brokers, opened for reading; how stores open."""
