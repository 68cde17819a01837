"""Transfer of partitions, edges and starting vectors into memory and back."""
