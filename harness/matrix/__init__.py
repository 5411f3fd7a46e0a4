"""The version matrix: files to cells, every value with its position and source."""
