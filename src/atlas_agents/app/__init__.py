"""From settings to a program that runs: everything opened, wired and closed again in the right order."""
