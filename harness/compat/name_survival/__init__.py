"""Which commit or release of a provider breaks which use of its consumers.

`name_survival.py` walks over the versions of the provider, `tree_surface.py` is the API surface of a version
that changes into the next one, `survival_map.py` draws the result.
"""
