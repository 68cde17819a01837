"""Tasks of the nightly chain and their helpers."""
