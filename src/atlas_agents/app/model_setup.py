"""Set-up of models: stored API keys, the chosen model, and downloads of local models, all applied without a restart."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.agents.atlas import Atlas
from atlas_agents.app.agents import AgentLoader
from atlas_agents.config.settings import Settings, has_password
from atlas_agents.core.aio import BackgroundTasks, run_in_thread
from atlas_agents.core.errors import ConfigError, ModelUnavailable
from atlas_agents.core.paths import SECRETS_FILE, Environment, Secret, make_private_folder, read_json, write_json
from atlas_agents.gateway.edits import Edits, EditTarget, unified_diff, version_of
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.protocol.events import ModelProgress
from atlas_agents.local.download import ensure_model
from atlas_agents.local.models import (
    CATALOG,
    LocalModel,
    check_engine,
    engine_command,
    find_model,
    is_gguf_path,
    model_state,
    models_folder,
)
from atlas_agents.providers.catalogue import DEMO, key_variables, parse_model_ref
from atlas_agents.providers.discovery import (
    VENDORS,
    FoundServer,
    ProviderCheck,
    check_provider,
    find_keys,
    find_servers,
    provider_title,
)
from atlas_agents.providers.registry import SELF_HOSTED, Registry
from atlas_agents.providers.settings import Effort
from atlas_agents.tools.redact import find_secret_variables, find_stored_secrets
from atlas_agents.workspace.build import LOCAL_MODEL, model_title

logger = logging.getLogger(__name__)
MODEL_FILE = "model.json"
"""File in the home folder with the chosen model."""
_POLL_SECONDS = 1.0
_REPORT_SECONDS = 0.25
_SPARE_BYTES = 50_000_000


class StoredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """API key of a provider in the secret file. A self-hosted server may need none."""

    key: str = ""
    base_url: str = ""
    added_at: int = 0

    def __repr__(self) -> str:
        return "StoredKey(…)"


class SelectedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """Model that a person chose for agents that name none.

    `instead_of` is the value of `ATLAS_MODEL` at that time: if it changes later, the variable takes precedence.
    """

    model: str = ""
    effort: Effort | None = None
    instead_of: str = ""


def read_stored_keys(home: Path) -> dict[str, StoredKey]:
    """Read the stored keys by provider; ConfigError if the file is invalid."""
    content = read_json(home / SECRETS_FILE, dict[str, Any]) or {}
    return msgspec.convert(content.get("providers", {}), dict[str, StoredKey])


def known_secrets(settings: Settings, environment: Environment) -> list[Secret]:
    """Return the secrets of the settings, of the variables and of the files in the home folder, for redaction."""
    urls = [url.reveal() for url in (settings.database_url, settings.redis_url) if url is not None]
    variables = {name: environment.get(name) or "" for name in environment.names()}
    found = [*filter(has_password, urls), *find_secret_variables(variables), *_read_stored_secrets(settings.home)]
    return [*settings.secrets, *map(Secret, found)]


def _read_stored_secrets(home: Path) -> list[str]:
    """Return the keys, bot tokens and values of MCP servers in the secret file, and the tokens of logins."""
    content = read_json(home / SECRETS_FILE, dict[str, Any]) or {}
    keys: list[Any] = [each.get("key") for each in content.get("providers", {}).values()]
    found = [*keys, *find_stored_secrets(content.get("mcp", {})), content.get("telegram", {}).get("token")]
    for path in _login_files(home):
        with suppress(ConfigError):  # a damaged file is reported where it is used
            login = read_json(path, dict[str, Any]) or {}
            for each in (login, login.get("tokens") or {}, login.get("client") or {}):
                found += [each.get(name) for name in ("access_token", "refresh_token", "client_secret")]
    return [value for value in found if isinstance(value, str) and value]


def _login_files(home: Path) -> list[Path]:
    """Return the files with refreshed tokens: those of X and of MCP servers."""
    return [home / "x.json", *sorted((home / "mcp").glob("login-*.json"))]


def write_stored_keys(home: Path, keys: Mapping[str, StoredKey]) -> None:
    """Write the stored keys to a file that only its owner can read; other entries of the file stay."""
    make_private_folder(home)
    content = read_json(home / SECRETS_FILE, dict[str, Any]) or {}
    write_json(home / SECRETS_FILE, {**content, "providers": keys})


def read_selected(home: Path, configured: str | None) -> SelectedModel:
    """Return the chosen model if it still counts; an empty one otherwise."""
    found = read_json(home / MODEL_FILE, SelectedModel) or SelectedModel()
    return found if found.instead_of == (configured or "") else SelectedModel()


def write_selected(home: Path, selected: SelectedModel) -> None:
    """Write the chosen model; the offered models are kept."""
    make_private_folder(home)
    offered = read_offered(home)
    write_json(home / MODEL_FILE, {**msgspec.to_builtins(selected), **({"offered": offered} if offered else {})})


def read_offered(home: Path) -> tuple[str, ...]:
    """Read the models that chats can choose in addition to those that agents use."""
    content = read_json(home / MODEL_FILE, dict[str, Any]) or {}
    return msgspec.convert(content.get("offered", ()), tuple[str, ...])


def write_offered(home: Path, refs: Iterable[str]) -> None:
    """Write the offered models; the chosen model stays."""
    make_private_folder(home)
    content = read_json(home / MODEL_FILE, dict[str, Any]) or {}
    write_json(home / MODEL_FILE, {**content, "offered": sorted(set(refs))})


def apply_stored_keys(registry: Registry, keys: Mapping[str, StoredKey]) -> list[Any]:
    """Apply the stored keys to a registry; returns the providers that are no longer used."""
    return registry.set_credentials({id: _variables(id, stored) for id, stored in keys.items()})


def _variables(provider: str, stored: StoredKey) -> dict[str, str]:
    variable = key_variables(provider)[0]
    values = {variable: stored.key, variable.replace("_API_KEY", "_BASE_URL"): stored.base_url}
    return {name: value for name, value in values.items() if value}


def _is_environment_key(environment: Environment, provider: str) -> str:
    """Return the environment variable that sets a provider's key; empty if there is none."""
    return next((found.variable for found in find_keys(environment) if found.provider == provider), "")


class ModelFeed:
    """Progress of local models that are downloaded or loaded; listeners receive it at most a few times per second."""

    def __init__(self) -> None:
        self.listeners: set[Callable[[ModelProgress], None]] = set()
        self.current: dict[str, ModelProgress] = {}
        self._sent: dict[str, float] = {}
        self._pending: set[str] = set()

    def report(self, id: str, done: int, total: int, step: str) -> None:
        """Report a step of a download, or that a model is being loaded."""
        state = "loading" if step == "loading" else "ready" if step == "ready" else "downloading"
        self.put(ModelProgress(id, state, done, total, step))

    def put(self, progress: ModelProgress) -> None:
        before, now = self.current.get(progress.id), time.monotonic()
        self.current[progress.id] = progress
        is_new = before is None or (before.state, before.step) != (progress.state, progress.step)
        if is_new or now - self._sent.get(progress.id, 0) >= _REPORT_SECONDS:
            self._send(progress.id)
        elif progress.id not in self._pending:
            self._pending.add(progress.id)
            asyncio.get_running_loop().call_later(_REPORT_SECONDS, self._send, progress.id)

    def _send(self, id: str) -> None:
        self._pending.discard(id)
        self._sent[id] = time.monotonic()
        for listener in tuple(self.listeners):
            listener(self.current[id])


class ModelSetup:
    """Model set-up behind the set-up card, the settings page and `atlas init`. Changes take effect at once."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        registry: Registry,
        loader: AgentLoader,
        atlas: Atlas,
        feed: ModelFeed,
    ) -> None:
        self.feed = feed
        self._settings = settings
        self._environment = environment
        self._registry = registry
        self._loader = loader
        self._atlas = atlas
        self._folder = models_folder(environment)
        self._tasks = BackgroundTasks("model set-up")
        self._downloads: dict[str, asyncio.Task[None]] = {}
        self._stamps, self._login_stamps = self._read_stamps(), self._read_login_stamps()
        self.offered = read_offered(settings.home)
        """Models that chats can choose in addition to those that agents use."""
        atlas.keep_secret(*known_secrets(settings, environment))

    async def close(self) -> None:
        """Stop the downloads; partial files are kept."""
        await self._tasks.close()

    # What there is

    @property
    def done(self) -> bool:
        """Whether a person chose a model, or an agent has one that is not a last resort."""
        return bool(self._selected().model) or self._used_model not in ("", LOCAL_MODEL)

    @property
    def hint(self) -> str:
        """The next step for a person who has not chosen a model; empty once it is done."""
        found = " and ".join(each.variable for each in find_keys(self._environment))
        step = "Choose a model in the web UI, or run: atlas init"
        return "" if self.done else f"Found {found}. {step}" if found else step

    @property
    def _used_model(self) -> str:
        """The model of the default agent; empty for the scripted demo."""
        default = self._atlas.get_agent()
        return next((model for model in default.models if isinstance(model, str)), "") if default else ""

    async def status(self) -> wire.SetupStatus:
        """Return the model in use, keys and servers that were found, and the local models."""
        servers = await find_servers(self._environment)
        default, used, selected = self._atlas.get_agent(), self._used_model, self._selected()
        found = [
            wire.FoundShape("key", each.provider, provider_title(each.provider), each.variable)
            for each in find_keys(self._environment)
        ]
        found += [
            wire.FoundShape("key", id, provider_title(id), "stored", _last_four(stored))
            for id, stored in self._stored().items()
            if not _is_environment_key(self._environment, id)
        ]
        found += [
            wire.FoundShape("server", each.provider, provider_title(each.provider), each.address, models=each.models)
            for each in servers
        ]
        shown, title = (used, model_title(used)) if used else (DEMO, "a scripted demo")  # until a model is there
        current = wire.CurrentModel(default.id if default else "", shown, title, selected.effort)
        return wire.SetupStatus(self.done, current, tuple(found), self._local_models())

    async def providers(self) -> wire.ProvidersResult:
        """Return every provider with the state and source of its key, and the local models."""
        servers = {each.provider: each for each in await find_servers(self._environment)}
        stored = self._stored()
        shapes = [self._vendor_shape(id, stored.get(id)) for id in VENDORS]
        shapes += [self._server_shape(id, servers.get(id)) for id in SELF_HOSTED]
        shown = [msgspec.structs.replace(each, offered=self._offered_by(each.id)) for each in shapes]
        return wire.ProvidersResult(tuple(shown), self._local_models())

    def _offered_by(self, provider: str) -> tuple[str, ...]:
        prefix = f"{provider}/"
        return tuple(ref.removeprefix(prefix) for ref in self.offered if ref.startswith(prefix))

    def _vendor_shape(self, id: str, stored: StoredKey | None) -> wire.ProviderShape:
        variable, agents = _is_environment_key(self._environment, id), self._agents_of(id)
        if variable:
            return wire.ProviderShape(id, provider_title(id), "connected", "environment", variable, agents=agents)
        if stored is None:
            return wire.ProviderShape(id, provider_title(id), "needs_key", agents=agents)
        return wire.ProviderShape(
            id,
            provider_title(id),
            "connected",
            "stored",
            last_four=_last_four(stored),
            added_at=stored.added_at,
            base_url=stored.base_url,
            agents=agents,
        )

    def _server_shape(self, id: str, found: FoundServer | None) -> wire.ProviderShape:
        state = "connected" if found else "not_reachable"
        address = found.address if found else self._environment.get(SELF_HOSTED[id].variable) or SELF_HOSTED[id].address
        models = found.models if found else ()
        return wire.ProviderShape(
            id, provider_title(id), state, "server", base_url=address, models=models, agents=self._agents_of(id)
        )

    def _agents_of(self, provider: str) -> tuple[str, ...]:
        """Return the agents whose first model is one of a provider."""
        return tuple(
            agent.id
            for agent in self._atlas.agents
            if agent.models and isinstance(ref := agent.models[0], str) and ref.startswith(f"{provider}/")
        )

    def _local_models(self) -> tuple[wire.LocalModelShape, ...]:
        return tuple(self._local_shape(model) for model in CATALOG.values())

    def _local_shape(self, model: LocalModel) -> wire.LocalModelShape:
        state, running = model_state(model, self._folder), model.id in self._downloads
        last = self.feed.current.get(model.id)
        done = last.done if running and last is not None and last.state == "downloading" else state.fetched
        shown = "ready" if state.installed else "downloading" if running else "paused" if state.fetched else "missing"
        error = last.error if last is not None and last.state == "failed" and not running else ""
        title = model_title(f"local/{model.id}")
        return wire.LocalModelShape(
            model.id,
            title,
            model.label,
            model.size,
            "failed" if error and shown != "ready" else shown,
            done,
            error,
            engine_command(),
        )

    # Keys

    async def test(self, params: wire.ProvidersTest) -> wire.ProviderTested:
        """List the models of a provider, with the given key or else the one that is set."""
        if params.key or params.base_url:
            key = StoredKey(_clean_key(params.key or ""), self._base_url(params.provider, params.base_url))
            registry = Registry(Environment({}, dotenv=None))
            apply_stored_keys(registry, {params.provider: key})
        else:
            registry = self._registry
        if params.provider not in (*VENDORS, *SELF_HOSTED):
            raise ConfigError(f"unknown provider {params.provider!r}: expected one of {', '.join(VENDORS)}")
        checked: ProviderCheck = await check_provider(params.provider, registry)
        return wire.ProviderTested(not checked.error, checked.models, checked.error)

    async def put_key(self, params: wire.SecretsPut, by: str, edits: Edits) -> wire.ProviderResult:
        """Store a key; agents that were waiting for it use it from their next turn on."""
        self._require_stored(params.provider)
        base_url = self._base_url(params.provider, params.base_url)
        stored = StoredKey(_clean_key(params.key), base_url, int(time.time() * 1000))
        if params.provider == "http" and not stored.base_url:
            raise ConfigError("baseUrl: expected the address of the server, such as http://localhost:8000/v1")
        if params.provider != "http" and not stored.key:
            raise ConfigError("key: expected an API key, got a blank one")
        Registry(Environment(_variables(params.provider, stored), dotenv=None)).provider(params.provider)
        await self._write_keys(params.provider, stored, by, edits)
        return wire.ProviderResult(self._vendor_shape(params.provider, stored))

    async def remove_key(self, params: wire.SecretsRemove, by: str, edits: Edits) -> wire.ProviderResult:
        """Remove a stored key; agents that used it use another model from their next turn on."""
        self._require_stored(params.provider)
        if params.provider not in self._stored():
            raise ConfigError(f"no key is stored for {provider_title(params.provider)}")
        await self._write_keys(params.provider, None, by, edits)
        return wire.ProviderResult(self._vendor_shape(params.provider, None))

    def _base_url(self, provider: str, given: str | None) -> str:
        """Return the given address of a provider, or else the stored one."""
        if given is not None:
            return _clean_address(given)
        stored = self._stored().get(provider)
        return stored.base_url if stored is not None else ""

    def _require_stored(self, provider: str) -> None:
        if provider not in VENDORS:
            raise ConfigError(f"unknown provider {provider!r}: expected one of {', '.join(VENDORS)}")
        if variable := _is_environment_key(self._environment, provider):
            raise ConfigError(f"{variable} sets the key of {provider_title(provider)}; change it there")

    async def _write_keys(self, provider: str, stored: StoredKey | None, by: str, edits: Edits) -> None:
        async def write() -> str | None:
            changed = {id: key for id, key in keys.items() if id != provider}
            if stored is not None:
                changed[provider] = stored
            await run_in_thread(write_stored_keys, self._settings.home, changed)
            self._reload()
            return _key_version(stored)

        async with edits.exclusive():
            keys = await run_in_thread(self._stored)
            before = EditTarget("secret", provider, _key_version(keys.get(provider)))
            await edits.apply(before, by, write, scope="admin")

    # The model

    async def select(
        self, params: wire.ModelsSelect, by: str, edits: Edits, *, ready: Callable[[], None] | None = None
    ) -> wire.ModelSelected:
        """Use a model for the agents that name none; an empty model removes the choice.

        `ready` is called when the agents use it, before clients learn of the edit.
        """
        ref = self.usable_ref(params.model)
        before = self._selected()
        chosen = SelectedModel(ref, params.effort, self._settings.model or "") if ref else SelectedModel()

        async def write() -> str | None:
            await run_in_thread(write_selected, self._settings.home, chosen)
            self._reload()
            if ready is not None:
                ready()
            return version_of(chosen)

        async with edits.exclusive():
            target = EditTarget("model", "default", version_of(before) if before.model else None)
            await edits.apply(target, by, write, diff=f"-{before.model}\n+{ref}")
        used_by = tuple(agent.id for agent in self._atlas.agents if agent.models and agent.models[0] == ref)
        return wire.ModelSelected(ref, model_title(ref), params.effort, used_by)

    def usable_ref(self, model: str) -> str:
        """Return the reference of a model; ConfigError unless its provider has a key, or the local model its file."""
        if not model:
            return ""
        parsed = parse_model_ref(model)
        ref = str(parsed)
        self._registry.provider(parsed.provider)
        if parsed.provider == "local" and not is_gguf_path(parsed.model):
            local = find_model(parsed.model)
            if not local.auto_download and not model_state(local, self._folder).installed:
                raise ModelUnavailable(f"{model_title(ref)} is not downloaded yet")
        return ref

    async def offer(self, params: wire.ModelsOffer, by: str, edits: Edits) -> wire.ModelsOffered:
        """Offer models in chats, or stop offering them; agents keep the models that they use."""
        refs = [str(parse_model_ref(each)) for each in params.models]
        for ref in refs if params.offered else ():
            self._registry.provider(parse_model_ref(ref).provider)
        async with edits.exclusive():
            before = await run_in_thread(read_offered, self._settings.home)
            after = tuple(sorted({*before, *refs} if params.offered else {*before} - {*refs}))

            async def write() -> str | None:
                await run_in_thread(write_offered, self._settings.home, after)
                self._reload()
                return version_of(after)

            target = EditTarget("model", "offered", version_of(before))
            diff = unified_diff("\n".join(before), "\n".join(after), "offered")
            if params.dry_run:
                return wire.ModelsOffered(before, diff=diff)
            await edits.apply(target, by, write, diff=diff)
        return wire.ModelsOffered(after, diff=diff)

    # Downloads

    async def download(self, params: wire.ModelsDownload, by: str, edits: Edits) -> wire.LocalModelResult:
        """Start or resume the download of a local model; with `use`, it is selected when it is complete."""
        model = find_model(params.id)
        check_engine()
        if params.id not in self._downloads:
            self._check_space(model)
            self.feed.put(ModelProgress(model.id, "downloading", 0, model.size, "starting"))
            task = self._tasks.spawn(self._download(model, by if params.use else "", edits))
            self._downloads[params.id] = task
        return wire.LocalModelResult(self._local_shape(model))

    async def pause(self, params: wire.OneLocalModel) -> wire.LocalModelResult:
        """Pause a download; the partial file is kept."""
        model = find_model(params.id)
        task = self._downloads.get(params.id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        return wire.LocalModelResult(self._local_shape(model))

    def _check_space(self, model: LocalModel) -> None:
        make_private_folder(self._settings.home)
        needed = model.size - model_state(model, self._folder).fetched + _SPARE_BYTES
        free = shutil.disk_usage(self._settings.home).free
        if free < needed:
            raise ModelUnavailable(f"Not enough disk space: {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free.")

    async def _download(self, model: LocalModel, select_by: str, edits: Edits) -> None:
        def progress(done: int, total: int, step: str) -> None:
            if step != "ready":  # announced below, once the model is selected
                self.feed.report(model.id, done, total, step)

        def ready() -> None:
            self._downloads.pop(model.id, None)
            self.feed.put(ModelProgress(model.id, "ready", model.size, model.size, "ready"))

        try:
            await ensure_model(model, self._folder, progress)
            if select_by:
                await self.select(wire.ModelsSelect(f"local/{model.id}"), select_by, edits, ready=ready)
                return
            if self._loader.local_error:
                self._loader.local_error = None
                self.rebuild()
            ready()
        except asyncio.CancelledError:
            self._downloads.pop(model.id, None)
            fetched = model_state(model, self._folder).fetched
            self.feed.put(ModelProgress(model.id, "paused", fetched, model.size, "paused"))
            raise
        except (ModelUnavailable, ConfigError) as error:
            self._downloads.pop(model.id, None)
            fetched = model_state(model, self._folder).fetched
            self.feed.put(ModelProgress(model.id, "failed", fetched, model.size, "failed", str(error)))

    # Files

    async def watch(self) -> None:
        """Apply changes that another process made, such as `atlas init`, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                self.refresh()
            except ConfigError as error:
                logger.warning("model set-up rejected: error=%s", error)

    def refresh(self) -> None:
        """Apply the files that have changed."""
        if self._read_stamps() != self._stamps:
            self._reload()
        if (stamps := self._read_login_stamps()) != self._login_stamps:
            self._login_stamps = stamps
            self._keep_stored_secrets()

    def _read_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(self._settings.home / name) for name in (SECRETS_FILE, MODEL_FILE))

    def _read_login_stamps(self) -> dict[Path, tuple[int, int] | None]:
        return {path: _stamp(path) for path in _login_files(self._settings.home)}

    def _keep_stored_secrets(self) -> None:
        self._atlas.keep_secret(*map(Secret, _read_stored_secrets(self._settings.home)))

    def _stored(self) -> dict[str, StoredKey]:
        return read_stored_keys(self._settings.home)

    def _selected(self) -> SelectedModel:
        return read_selected(self._settings.home, self._settings.model)

    def _reload(self) -> None:
        """Apply the files: keys to the registry, the model to the agents."""
        self._stamps = self._read_stamps()
        self._keep_stored_secrets()
        self.offered = read_offered(self._settings.home)
        for provider in apply_stored_keys(self._registry, self._stored()):
            self._tasks.spawn(provider.close())
        selected = self._selected()
        self._loader.set_default(selected.model or self._settings.model, selected.effort)
        self.rebuild()

    def rebuild(self) -> None:
        """Build the agents again, for their next turns."""
        self._atlas.set_agents(self._loader.agents())


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _key_version(stored: StoredKey | None) -> str | None:
    """Return a version of a key that reveals nothing about it."""
    return str(stored.added_at) if stored is not None else None


def _last_four(stored: StoredKey) -> str:
    return stored.key[-4:] if len(stored.key) >= 12 else ""


def _clean_key(key: str) -> str:
    cleaned = key.strip()
    if not cleaned.isascii() or not cleaned.isprintable() or " " in cleaned or "," in cleaned:
        raise ConfigError("key: contains a character that no API key has; copy it again")
    return cleaned


def _clean_address(address: str) -> str:
    cleaned = address.strip().rstrip("/")
    if cleaned and not cleaned.startswith(("http://", "https://")):
        raise ConfigError(f"baseUrl: invalid address {address!r}: expected http:// or https://")
    return cleaned
