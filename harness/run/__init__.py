"""Executes planned tasks and records what they produced."""
