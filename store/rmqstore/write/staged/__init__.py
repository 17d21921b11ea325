"""The rows of a job: many tasks stage them, one commit appends them."""
