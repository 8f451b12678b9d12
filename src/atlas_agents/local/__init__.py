"""Models that run on this machine, without a key: which there are, how they come here, who serves them."""
