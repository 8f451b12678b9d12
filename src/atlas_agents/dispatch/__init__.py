"""Dispatchers: decide which process executes an accepted run, and reassign the runs of processes that died."""
