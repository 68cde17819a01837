"""Benchmarks of speed and memory, each against torchbiggraph in the same run: ``python -m benchmarks.speed``."""
