"""Training as pods: one Indexed Job a gang, what belongs to it, and how its end is judged.

Nothing here imports the Kubernetes client before a task runs: the scheduler parses these modules.
"""
