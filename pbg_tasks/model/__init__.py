"""The mathematics: relation operators, comparators, losses, negatives. Pure functions of tensors."""
