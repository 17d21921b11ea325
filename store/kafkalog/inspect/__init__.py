"""What lies in log directories, as rows: partitions, batches, and disagreements."""
