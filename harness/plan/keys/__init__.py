"""Keys: the digest of a check, its code, its parameters and its facets. Tasks with equal keys are the same
work.

Start with `key.py`; `facets.py` has the facets, `code_digests.py` computes the code part, and `keyring.py`
computes the keys of many cells at once.
"""
