"""Patches over upstream's history: at which commits each applies, which commit broke it, and what breaks
next.

Start with `survival.py`; `heatmap.py` draws it. `breakage.py` finds the commit that broke one patch, and
`forecast.py` applies a stack to the head of a branch.
"""
