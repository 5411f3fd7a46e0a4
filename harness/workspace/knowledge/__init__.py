"""Keeps the surface pack up to date: `npu-matrix knowledge`. `pack_update.py` reads releases."""
