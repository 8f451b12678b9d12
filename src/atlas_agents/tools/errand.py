"""What a run has to do, as it is kept with the run: all that a process needs to begin it that has never heard of it."""

import msgspec

from atlas_agents.core.jobs import NOBODY, Chain
from atlas_agents.core.messages import Message, ToolCall
from atlas_agents.core.store import RunRow


class Errand(msgspec.Struct, frozen=True):
    """The messages it begins with, the shape of the answer, who speaks and how, whether a person can be asked, and for
    whom it is done. With a `call` nobody speaks: it is just that call. `wishes` are the caller's, of the model."""

    messages: tuple[msgspec.Raw, ...]
    output: msgspec.Raw = msgspec.Raw(b"null")
    model: str = ""
    asks: bool = True
    mode: str = ""
    team: msgspec.Raw = msgspec.Raw(b"{}")
    chain: Chain = NOBODY
    call: ToolCall | msgspec.UnsetType = msgspec.UNSET
    wishes: msgspec.Raw = msgspec.Raw(b"null")

    def began_with(self) -> list[Message]:
        return [Message.from_json(bytes(each)) for each in self.messages]


def errand_of(row: RunRow) -> Errand:
    """Of a run as it was accepted. Those of the first version held just their message."""
    found = msgspec.json.decode(row.request, type=dict[str, msgspec.Raw])
    return msgspec.json.decode(row.request, type=Errand) if "messages" in found else Errand((msgspec.Raw(row.request),))
