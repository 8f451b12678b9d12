"""Sandboxes for untrusted commands and code: confine them, limit their resources, and kill every process they start."""
