"""What holds commands and code here, or what to install."""

from collections.abc import AsyncIterator

from atlas_agents.builtin_tools.code import interpreter
from atlas_agents.builtin_tools.sandbox.choose import choose
from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import SandboxUnavailable


async def look_at_sandbox(settings: Settings) -> AsyncIterator[Finding]:
    """By running something in it."""
    if settings.sandbox == "none":
        yield notice("sandbox", "none, as set: code and commands may do all that you may", "set sandbox to auto")
        return
    try:
        found = await choose(settings.sandbox)
    except SandboxUnavailable as missing:
        if settings.sandbox == "auto" and interpreter.installed():
            yield notice("sandbox", f"wasm for code, none for commands: {missing.reason}", missing.remedy)
        elif settings.sandbox == "auto":
            yield notice("sandbox", f"there is none, so code is not run: {missing.reason}", missing.remedy)
        else:
            yield broken("sandbox", missing.reason, missing.remedy)
        return
    if settings.sandbox == "wasm" and not interpreter.installed():
        yield broken("sandbox", "pyeryx is not installed", interpreter.REMEDY)
    else:
        words = f"wasm for code, {found.name} for commands" if settings.sandbox == "wasm" else found.name
        yield ok("sandbox", f"{words}: it runs, and holds")
