"""Reading commands: what a run, a directory or an installation holds."""
