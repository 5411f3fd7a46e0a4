"""Benchmarks of the numerics checks that have a command line of their own."""
