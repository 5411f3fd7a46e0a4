"""One model, several renderings."""
