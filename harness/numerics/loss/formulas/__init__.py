"""The float64 reference of the check `loss`: each loss function with its gradient in closed form and its
error bound, in numpy only. The docstring of each module names the sources of its formulas. Start with
`loss_reference.py`."""
