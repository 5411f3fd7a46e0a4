"""Turns a recipe of matrix.yaml into the command that starts it on NPU hosts, and checks it beforehand.

Start with `recipe_launch.py`.
"""
