"""One bucket in, figures out: engines and the mathematics of a step in memory."""
