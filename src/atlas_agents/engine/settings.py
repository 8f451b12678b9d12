"""What an agent is set to: frozen values, checked when they are made."""

from typing import Literal, TypeAlias, get_args

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.providers.failover import RetryPolicy
from atlas_agents.providers.registry import Model

Mode: TypeAlias = Literal["tools", "react", "plan"]
"""How a turn is taken: with the model's own tool calls, with tools as text, or by a plan that is worked off."""
MODES: tuple[Mode, ...] = get_args(Mode)


class Settings(msgspec.Struct, frozen=True):
    """Identity and model settings of an agent."""

    id: str
    name: str = ""
    description: str = ""
    models: tuple[Model, ...] = ()
    retry: RetryPolicy = RetryPolicy()
    system_prompt: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: str = "auto"
    role: str = ""
    mode: Mode = "tools"
    parallel_tools: bool = True
    max_rounds: int = 10
    hands_off_to: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.id.strip():
            raise ConfigError("an agent needs an id")
        if self.max_rounds < 1:
            raise ConfigError(f"agent {self.id!r}: max_rounds must be at least 1, not {self.max_rounds}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"agent {self.id!r}: max_tokens must be at least 1, not {self.max_tokens}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"agent {self.id!r}: temperature is from 0 to 2, not {self.temperature}")
        if self.mode not in MODES:
            raise ConfigError(f"agent {self.id!r}: there is no mode {self.mode!r}; there are {', '.join(MODES)}")
