"""The test battery of the check `loss`: what a case is, its file format, and how the cases are drawn. Start
with `loss_battery.py`.
"""
