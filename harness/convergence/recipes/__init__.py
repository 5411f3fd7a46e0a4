"""A recipe of matrix.yaml as the command that starts the training on NPU hosts, with what to verify before it
starts. Start with `recipe_launch.py`.
"""
