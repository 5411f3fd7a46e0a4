"""The store of outcomes."""
