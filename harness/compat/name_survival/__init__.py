"""Follows the uses of a package over commits or releases of another one: which version broke which use.

`name_survival.py` walks over the versions. `tree_surface.py` is the API surface of the present version, whose
files `file_index.py` reads once for each content; `word_index.py` answers questions about words in its text.
`name_survival_page.py` draws the map.
"""
