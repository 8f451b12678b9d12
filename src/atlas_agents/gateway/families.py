"""All families of methods, put together."""

from atlas_agents.gateway.approval_methods import add_approval_methods
from atlas_agents.gateway.call_methods import add_call_methods
from atlas_agents.gateway.carrying_methods import add_carrying_methods
from atlas_agents.gateway.chat_methods import add_chat_methods
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.house_methods import add_house_methods
from atlas_agents.gateway.job_methods import add_job_methods
from atlas_agents.gateway.knowledge_methods import add_knowledge_methods
from atlas_agents.gateway.record_methods import add_record_methods
from atlas_agents.gateway.run_methods import add_run_methods
from atlas_agents.gateway.schedule_methods import add_schedule_methods
from atlas_agents.gateway.search_methods import add_search_methods
from atlas_agents.gateway.session_methods import add_session_methods
from atlas_agents.gateway.tenant_methods import add_tenant_methods

_FAMILIES = (
    add_chat_methods,
    add_session_methods,
    add_search_methods,
    add_carrying_methods,
    add_run_methods,
    add_job_methods,
    add_schedule_methods,
    add_approval_methods,
    add_record_methods,
    add_knowledge_methods,
    add_call_methods,
    add_house_methods,
    add_tenant_methods,
)


def all_methods() -> Methods:
    """The table with a function behind every method."""
    methods = Methods()
    for add in _FAMILIES:
        add(methods)
    return methods
