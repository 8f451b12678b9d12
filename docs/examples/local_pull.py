"""List the local models and download one."""

import asyncio

from atlas_agents.local.download import pull
from atlas_agents.local.models import list_models


def show(done: int, total: int, words: str) -> None:
    if words == "ready":
        print(f"{words}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")


for state in list_models():
    print(state.model.id, f"{state.model.megabytes} MB", state.model.license)

print(asyncio.run(pull("smollm2-135m", progress=show)).name)
