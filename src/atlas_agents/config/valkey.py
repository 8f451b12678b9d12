"""The client of Valkey or Redis that the settings name."""

from typing import Any

from atlas_agents.config.urls import scheme
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.secret import Secret

_TIMEOUT = 2.0
_LIKE = "it looks like redis://:password@host:6379/0 or rediss://:password@host:6379/0?ssl_ca_certs=/path"


def open_valkey(url: Secret | None) -> Any:
    """A client with a pool of its own, which connects when it is used; None where none is set. The certificate of
    `rediss://` must be of the host that the address names."""
    if url is None:
        return None
    try:
        from valkey.asyncio import Valkey
        from valkey.exceptions import ValkeyError
    except ImportError as error:
        raise ConfigError("redis_url: Valkey and Redis need an extra: pip install 'atlas-agents[cluster]'") from error
    options: dict[str, Any] = {"socket_timeout": _TIMEOUT, "protocol": 2, "client_name": "atlas"}
    if scheme(url.reveal()) != "unix":
        options["socket_connect_timeout"] = _TIMEOUT
    if scheme(url.reveal()) == "rediss":
        options["ssl_check_hostname"] = True
    try:
        client: Any = Valkey.from_url(url.reveal(), **options)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # which knows the options; it connects to nobody yet
    except (ValueError, TypeError, ValkeyError):  # their words may repeat the address, and the password in it
        raise ConfigError(f"redis_url: the address, or an option in it, cannot be read: {_LIKE}") from None
    return client
