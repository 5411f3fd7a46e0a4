"""Metamorphic relations between results of one loss implementation, which every correct loss fulfils and which
need no reference. Start with `loss_relations.py`.
"""
