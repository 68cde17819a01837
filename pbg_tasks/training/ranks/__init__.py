"""Training by several ranks.

It is PBG's distributed mode, and survives the loss of a rank.
"""
