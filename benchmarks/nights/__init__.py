"""What warm starts are worth: measured on nights of real graphs, both sides in one run."""
