"""All families of methods, put together."""

from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.house_methods import add_house_methods


def all_methods() -> Methods:
    """The table with a function behind every method that there is."""
    methods = Methods()
    for add in (add_house_methods,):
        add(methods)
    return methods
