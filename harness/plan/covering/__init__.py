"""Chooses few cells that together contain every feasible combination of versions up to a given size, and as
many of them as a time budget allows. Start with `covering_set.cover`.
"""
