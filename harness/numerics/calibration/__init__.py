"""`npu-matrix numerics calibrate`: records the arithmetic constants of a device and the share of its
tolerance that each group of loss cases uses. Start with `calibration_check.py`.
"""
