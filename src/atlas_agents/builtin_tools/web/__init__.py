"""The web: pages that are fetched past a guard and read in a process that can be killed, and searches."""
