"""Training as pods: one Indexed Job for a gang, and its end.

Nothing here imports the Kubernetes client before a task runs: the scheduler parses these modules.
"""
