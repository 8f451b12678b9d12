"""The room of knowledge and memories, furnished as the settings say."""

import logging
from typing import Any

from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.secret import Secret
from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder, LocalEmbedder
from atlas_agents.knowledge.endpoint import EndpointEmbedder
from atlas_agents.knowledge.past import Jobs
from atlas_agents.knowledge.sources import Sources
from atlas_agents.knowledge.study import Study
from atlas_agents.providers.registry import Registry, parse_model_ref

logger = logging.getLogger(__name__)


def open_study(settings: Settings, store: Store, registry: Registry) -> Study:
    """Over the store of the house; what is fetched for it passes the same guard as `url_fetch`."""
    sources = Sources(hosts=settings.fetch_hosts)
    return Study(store, _embedder(settings, registry), sources=sources, pasts={"workflows": [Jobs(store)]})


def _embedder(settings: Settings, registry: Registry) -> Embedder | None:
    if settings.embeddings == "none":
        return None
    if settings.embeddings != "local":
        return _endpoint(settings, registry)
    try:
        return LocalEmbedder()
    except ConfigError as error:
        logger.info("documents and memories are found by their words alone: %s", error)
        return None


def _endpoint(settings: Settings, registry: Registry) -> Embedder:
    ref = parse_model_ref(settings.embeddings)
    if settings.embeddings_url:
        return EndpointEmbedder(ref.model, base_url=settings.embeddings_url, key=settings.embeddings_key)
    provider: Any = registry.provider(ref.provider)
    base_url, key = getattr(provider, "base_url", None), getattr(provider, "key", None)
    if not isinstance(base_url, str) or ref.provider == "anthropic":
        raise ConfigError(f"embeddings: {ref.provider} has none; name a model of openai, or set embeddings_url")
    return EndpointEmbedder(ref.model, base_url=base_url, key=key if isinstance(key, Secret) else None)
