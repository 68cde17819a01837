"""The services a demo or a test starts for itself: real ones, on loopback, with keys of their own."""
