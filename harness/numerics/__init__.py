"""The numerics tier: checks whether verl computes correct losses, gradients and updates on a device.
`checks.py` declares the checks. Each has a sub-package: `loss` (single loss functions), `actor` (one update
through verl's actor classes), `twin` (ten training steps compared with a float64 copy). `arithmetic` has the
error bounds and precision contracts that all of them use. Start with `loss/loss_check.py`."""
