"""Core layer: values and small utilities that every other layer uses."""
