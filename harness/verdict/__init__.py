"""From outcomes to verdicts. Start with `verdict`, which judges one outcome and compares it with the expected
failures; `plan_verdicts` does so for every entry of a plan and computes the exit code, `expectations` edits
the expected failures in matrix.yaml. `gate` compares a change with its base, `triage` explains logs.
"""
