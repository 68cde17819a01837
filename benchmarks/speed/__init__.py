"""Benchmarks of speed and memory: ``python -m benchmarks.speed``.

Each is compared with torchbiggraph in the same run.
"""
