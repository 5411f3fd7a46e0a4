"""The test battery of the check `loss`: the class of a case, the file format, and the functions that draw the
cases. Start with `loss_battery.py`."""
