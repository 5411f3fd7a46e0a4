"""Pure functions from outcomes to verdicts."""
