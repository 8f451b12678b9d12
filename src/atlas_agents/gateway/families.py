"""All families of methods, put together."""

from atlas_agents.gateway.approval_methods import add_approval_methods
from atlas_agents.gateway.call_methods import add_call_methods
from atlas_agents.gateway.chat_methods import add_chat_methods
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.house_methods import add_house_methods
from atlas_agents.gateway.record_methods import add_record_methods
from atlas_agents.gateway.run_methods import add_run_methods
from atlas_agents.gateway.search_methods import add_search_methods
from atlas_agents.gateway.session_methods import add_session_methods

_FAMILIES = (
    add_chat_methods,
    add_session_methods,
    add_search_methods,
    add_run_methods,
    add_approval_methods,
    add_record_methods,
    add_call_methods,
    add_house_methods,
)


def all_methods() -> Methods:
    """The table with a function behind every method."""
    methods = Methods()
    for add in _FAMILIES:
        add(methods)
    return methods
