"""The numerics tier: whether verl computes the right losses, gradients and updates on a device. `checks.py`
declares the checks; each lies in a sub-package of its own: `loss` (single loss functions), `actor` (one
update through verl's own classes), `twin` (ten training steps against a float64 copy). `arithmetic` has
what all of them rest on, error bounds and precision contracts. Start with `loss/loss_check.py`.
"""
