"""A test battery of the operators that serving engines call, compared with plain formulas in float64.

When generation is wrong, it names the operator that is wrong. Start with `operator_battery.py`;
`operator_cases.py` lists the cases and `plain_operators.py` has the formulas.
"""
