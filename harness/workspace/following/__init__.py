"""Finds new rows of published tables and new releases, for `npu-matrix matrix follow`.

Start with `table_news.py`: it reads `followed_documents.py` (documents in upstream repositories) and
`followed_releases.py` (metadata on the package index). `additions.py` makes stacks and migrations
of new rows.
"""
