"""Checks of packages and recipes that need no device."""
