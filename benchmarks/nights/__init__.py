"""The value of warm starts, measured on nights of real graphs.

Both sides are measured in one run.
"""
