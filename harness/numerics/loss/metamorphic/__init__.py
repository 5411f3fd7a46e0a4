"""Metamorphic relations: properties that every correct loss has between its own results, tested without a
reference. Start with `metamorphic.py`.
"""
