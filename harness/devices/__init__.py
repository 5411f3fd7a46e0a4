"""Devices: what a host has."""
