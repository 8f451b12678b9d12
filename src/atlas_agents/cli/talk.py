"""The conversation at the prompt: reads a line, takes a turn, and knows a few commands."""

from collections.abc import Callable
from importlib.metadata import version

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console

from atlas_agents.cli.choice import Choice
from atlas_agents.cli.page import Page
from atlas_agents.cli.turn import take_turn
from atlas_agents.cli.words import answered, called, one_line, printable, sentence
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import AtlasError, Cancelled
from atlas_agents.core.messages import Message
from atlas_agents.engine.atlas import Atlas
