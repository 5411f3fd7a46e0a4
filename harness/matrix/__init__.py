"""matrix.yaml with positions: axes, constraints with reasons, stacks, recipes, and the cells of a profile."""
