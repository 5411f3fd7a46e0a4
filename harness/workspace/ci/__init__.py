"""Gates for the CI systems of other repositories: templates, and the function that fills them in.

Read `gate_pipelines.py`.
"""
