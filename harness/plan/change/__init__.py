"""Compares plans: which tasks a change to the checkout affects, why a task runs again, and the files of an
earlier revision. Start with `impact.impact`.
"""
