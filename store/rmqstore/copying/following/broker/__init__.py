"""The broker that is followed: who it is, and where it is asked."""
