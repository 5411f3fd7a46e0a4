"""From outcomes to verdicts: `verdict` judges an outcome and compares it with the expected failures, `join`
does so for every entry of a plan, `run_summary` gives the exit code, `expectations` edits the list of
expected failures. `gate` compares a change with its base, `triage` explains logs.
"""
