"""Patches over upstream's history: to which commits they apply, which commits broke them, and which patches
will break next.

Start with `survival.py`; `heatmap.py` draws it. `breakage.py` finds the commit that broke one patch, and
`forecast.py` applies a stack to the head of a branch.
"""
