"""Which versions are compatible according to the constraints and the stored outcomes, and which rule excludes
a combination. Start with `exclusion.explain` and `stack_advice.advise_stacks`.
"""
