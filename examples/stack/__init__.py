"""The services that a demo or a test starts for itself.

They are real ones, on loopback, with keys of their own.
"""
