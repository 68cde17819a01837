"""Search of hyper-parameters on one prepared snapshot."""
