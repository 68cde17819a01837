"""Cost of preparation on DuckDB and on Spark."""
