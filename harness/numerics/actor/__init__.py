"""The checks `actor` and `actor-bf16`: one update of a small model through verl's actor classes, compared
tensor by tensor with a float64 run on the CPU. Start with `actor_check.py` (runs and judges, on the host),
then `actor_program.py` (runs inside the cell)."""
