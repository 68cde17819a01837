"""Exchange of shared parameters between ranks."""
