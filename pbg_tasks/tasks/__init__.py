"""The tasks of the chain: each reads the run spec, calls a room, writes its result.

Import the module of the task you need: each pulls in only what its work takes.
"""
