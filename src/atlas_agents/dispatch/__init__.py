"""Who runs a run that was taken in, and takes over from the dead: a port of four verbs, and what stands behind it."""
