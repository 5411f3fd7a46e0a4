"""Short trainings and the rule that judges their curves. Runs inside a cell."""
