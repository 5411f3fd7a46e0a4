"""Records which process owns the containers, images and temporary folders of a run, and uses the cache.

With these records, `cleanup` removes only what belongs to processes that have ended. Start with
`owner_labels.py`.
"""
