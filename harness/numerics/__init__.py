"""Loss numerics against an independent float64 reference. Runs inside a cell."""
