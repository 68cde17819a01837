"""Forecast of a night's time, memory and traffic, task by task.

It is computed from counts, and corrected by the figures of earlier nights.
"""
