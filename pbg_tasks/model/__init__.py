"""Mathematics of the model, as pure functions of tensors.

They are relation operators, comparators, losses and negatives.
"""
