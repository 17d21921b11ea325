"""The parts of a store on disk: files, tables of the broker, log, queues, index, and their ends."""
