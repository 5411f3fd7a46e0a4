"""The float64 reference of the check `loss`: each loss function with its gradient in closed form and its
error bound, in numpy only. Start with `loss_reference.py`.
"""
