"""Example data sets that are downloaded, never shipped."""
