"""`atlas store …`: what is kept no longer is removed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.moving import moving
from atlas_agents.cli.reach import TENANT
from atlas_agents.config.open import open_store
from atlas_agents.config.settings import Settings
from atlas_agents.core.store import Prunable, Pruned, Store
from atlas_agents.stores.retention import KINDS, RetentionJob, RetentionPolicy

_NAMES: dict[Prunable, str] = {"events": "events", "journal": "steps"}


def prune(events: int | None, journals: int | None, *, dry_run: bool, as_json: bool) -> int:
    async def work() -> None:
        settings = given.settings()
        keep = RetentionPolicy(
            settings.keep_events if events is None else events,
            settings.keep_journals if journals is None else journals,
        )
        async with opened(settings) as store:
            found = await _prune(store, keep, dry_run=dry_run)
        if as_json:
            show.as_json({"dryRun": dry_run, **found})
            return
        for what, gone in found.items():
            print(_words(what, gone, "would be removed" if dry_run else "removed"))

    quiet()
    return run(work)


async def _prune(store: Store, keep: RetentionPolicy, *, dry_run: bool) -> dict[Prunable, Pruned]:
    """Of every tenant, one after the other."""
    found = dict.fromkeys(KINDS, Pruned())
    for tenant in await every_tenant(store):
        keeper = RetentionJob(store, tenant, keep)
        for what in KINDS:
            if dry_run:
                found[what] += await keeper.due(what)
            else:
                with moving() as tell:
                    found[what] += await keeper.prune(
                        what, on_progress=lambda so_far, what=what: tell(_words(what, so_far))
                    )
    return found


def _words(what: Prunable, gone: Pruned, done: str = "removed") -> str:
    turns = "turn" if gone.runs == 1 else "turns"
    return f"{gone.rows:,} {_NAMES[what]} of {gone.runs:,} {turns} {done}, {gone.size / 1e6:.1f} MB"


async def every_tenant(store: Store) -> list[str]:
    """The one that is served without a word about tenants, and all that have a record."""
    return sorted({TENANT, *await store.tenants()})


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Store, None]:
    """The store that the settings name, as long as the block lasts."""
    store = open_store(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
