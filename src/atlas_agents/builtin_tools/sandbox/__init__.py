"""Where commands and code run that nobody here wrote: confined, limited, watched, and ended whole."""
