"""Measurements of what this project claims."""
