"""How training scales with ranks: simulated with the real scheduler, checked against real runs."""
