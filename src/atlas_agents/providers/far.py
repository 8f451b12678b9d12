"""Pictures and files that a message names by address: the vendor fetches them, we never do.

A vendor's server may be next door (one's own llama.cpp or vLLM), and an address in a message may come from anybody. So
an address that is not public by its looks is not passed on, and the model is told that something is missing.
"""

from atlas_agents.core.addresses import is_public_url

LEFT_OUT = "[something at an address that is not public was left out]"


def may_be_fetched(url: str) -> bool:
    """Whether the address may be passed on."""
    return url.startswith("data:") or is_public_url(url)
