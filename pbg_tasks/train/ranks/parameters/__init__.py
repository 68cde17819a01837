"""Shared parameters between ranks."""
