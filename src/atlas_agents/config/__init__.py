"""The settings of the command and the gateway: where they come from, and what is opened with them."""
