"""Exchange of partitions between ranks, in memory and in the store."""
