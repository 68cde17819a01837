"""Forecasts of a task's memory, and the memory of this machine.

A forecast is made term by term, and without torch, so that a plan can make one.
"""
