"""The tasks of the chain.

Each task reads the run spec, calls a room and writes its result. Import the module of the task that you need: each
imports only what its own work takes.
"""
