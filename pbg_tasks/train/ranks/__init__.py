"""Training by several ranks: PBG's distributed mode, made to survive the loss of one."""
