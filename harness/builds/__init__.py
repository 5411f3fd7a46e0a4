"""Cell environments."""
