"""Who owns what a run creates: processes, temporary folders, labels of containers, use of the cache.

Everything a run starts or creates names its owner, so that `cleanup` removes only what belongs to dead
processes. Start with `owner_labels.py`.
"""
