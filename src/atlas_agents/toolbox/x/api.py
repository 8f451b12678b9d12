"""The API of X, version 2: requests in the name of an account, and what its refusals mean."""

import time
from typing import Any

import msgspec

from atlas_agents.core.errors import OutcomeUnknown, ToolFailed, Transient
from atlas_agents.toolbox.x.oauth import AUTHORISE, Tokens
from atlas_agents.toolbox.x.wire import Answer, Lost, Wire


class _Said(msgspec.Struct, frozen=True):
    message: str = ""
    detail: str = ""


class _Problem(msgspec.Struct, frozen=True):
    """How X says no."""

    title: str = ""
    detail: str = ""
    errors: tuple[_Said, ...] = ()


class XApi:
    """What an account may ask. Every fault is one that a model can read."""

    def __init__(self, wire: Wire, tokens: Tokens) -> None:
        self._wire = wire
        self._tokens = tokens

    async def get(self, path: str, **params: str) -> Any:
        """What X answers; asking changes nothing, so it may be asked again."""
        return await self._ask("GET", path, acts=False, params=params)

    async def post(self, path: str, *, acts: bool, **content: Any) -> Any:
        """The same for what is sent there. If it `acts`, a line that breaks leaves it unknown whether it did."""
        return await self._ask("POST", path, acts=acts, **content)

    async def close(self) -> None:
        await self._wire.close()

    async def _ask(self, method: str, path: str, *, acts: bool, **content: Any) -> Any:
        token = await self._tokens.current()
        answer = await self._once(method, path, token, acts=acts, **content)
        if answer.status == 401:
            token = await self._tokens.current(refused=token)
            answer = await self._once(method, path, token, acts=acts, **content)
        return _read(answer, acts=acts)

    async def _once(self, method: str, path: str, token: str, *, acts: bool, **content: Any) -> Answer:
        make: Any = content.get("data")
        if callable(make):  # a form is used up by sending it
            content["data"] = make()
        try:
            return await self._wire.ask(method, path, {"Authorization": f"Bearer {token}"}, **content)
        except Lost as lost:
            if lost.sent and acts:
                raise OutcomeUnknown(f"{lost}; the post may be there. It was not sent again.") from None
            raise Transient(f"{lost}.") from None


def _read(answer: Answer, *, acts: bool) -> Any:
    if 200 <= answer.status < 300:
        try:
            return msgspec.json.decode(answer.body) if answer.body else None
        except msgspec.DecodeError:
            raise (OutcomeUnknown if acts else ToolFailed)("What came from X cannot be read.") from None
    if answer.status == 429:
        wait = _seconds(answer)
        raise Transient(f"X allows no more of this for {wait:.0f} s; nothing was done.", retry_after=wait)
    if answer.status >= 500:
        words = f"X has trouble of its own (HTTP {answer.status})"
        raise OutcomeUnknown(f"{words}; the post may be there.") if acts else Transient(f"{words}.")
    raise ToolFailed(_advice(answer.status, _problem(answer)))


def _seconds(answer: Answer) -> float:
    """How long to wait, as the headers say; a while if they don't."""
    try:
        return max(1.0, float(answer.headers["x-rate-limit-reset"]) - time.time())
    except (KeyError, ValueError):
        return 900.0


def _problem(answer: Answer) -> str:
    try:
        found = msgspec.json.decode(answer.body, type=_Problem)
    except msgspec.DecodeError:
        return ""
    said = found.detail or next((each.detail or each.message for each in found.errors), "") or found.title
    return " ".join(said.split())[:300]


def _advice(status: int, words: str) -> str:
    if status == 401:
        return f"X does not take the token of this account: {AUTHORISE}."
    if status == 402:
        return f"X wants to be paid first: {words or 'the credits of this app are used up'}."
    if status == 403 and "duplicate" in words.lower():
        return "X has just this post from this account already, and takes no second one."
    if status == 403:
        return (
            f"X does not allow it: {words}. The app needs the scopes tweet.read, tweet.write, users.read, media.write "
            "and offline.access, and the account must have agreed to them."
        )
    return f"X refused it: {words or 'without a reason'} (HTTP {status})."
