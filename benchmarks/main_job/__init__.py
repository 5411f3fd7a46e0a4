"""How long the main job takes cold, unchanged, and after touching one patch; its overhead; start-up times."""
