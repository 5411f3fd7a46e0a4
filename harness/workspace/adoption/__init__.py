"""Adopts npu-matrix in another repository: what is there, and the files that start from it.

Read first: `repository_survey`, then `first_files`.
"""
