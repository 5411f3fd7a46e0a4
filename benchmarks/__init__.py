"""Commands behind each claim of speed or power, one folder each."""
