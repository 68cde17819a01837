"""Example data that is fetched, never shipped."""
