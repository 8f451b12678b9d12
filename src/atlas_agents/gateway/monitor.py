"""Monitor of a gateway: live figures for the operations view, and alerts to a webhook or Telegram.

Alert states are stored, so that a restart sends nothing twice, and only one gateway of a cluster sends a message: the
first that saw the condition. It confirms the state every minute; if the confirmations stop, another gateway takes over.
Targets that a message has not reached are stored with the state, and retried at each confirmation.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import msgspec

from atlas_agents.agents.atlas import Atlas
from atlas_agents.builtin_tools.telegram_api import BotAccount, BotApi
from atlas_agents.core import package_version
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.alert_rules import AlertMetric, AlertRule
from atlas_agents.core.budgets import BudgetStatus
from atlas_agents.core.errors import ConfigError, Conflict
from atlas_agents.core.http import backoff
from atlas_agents.core.json import encode
from atlas_agents.core.messages import new_id
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import PutRecord, RecordKind, Store
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.providers.failover import ModelStatus, Percentiles, merge_buckets

if TYPE_CHECKING:
    from atlas_agents.dispatch.members import ClusterStatus, ModelFigures

logger = logging.getLogger(__name__)
CHECK_INTERVAL = 5.0
_CONFIRM_INTERVAL = 60.0
_STALE = 180.0
_ATTEMPTS = 6
_MAX_DELAY = 60.0
_RECORD: tuple[RecordKind, str] = ("chore", "alerts")


class AlertSender(Protocol):
    """Delivers a message to one target. It raises an exception whose text contains no secret."""

    async def __call__(self, text: str, fields: Mapping[str, Any]) -> None: ...


class InstallationPort(Protocol):
    """Port: status of the installation, as a monitor reads it."""

    async def storage(self) -> wire.StorageStatus: ...

    async def cluster(self) -> "ClusterStatus | None": ...


class WebhookSender:
    """Posts alerts as JSON to a URL of the operator, which may contain a secret.

    The URL may be in a private network, because a person wrote it in the settings; tools still cannot use its host.
    Redirects are not followed: a response must not choose another host.
    """

    def __init__(self, url: Secret) -> None:
        self._url = url

    async def __call__(self, text: str, fields: Mapping[str, Any]) -> None:
        from atlas_agents.builtin_tools.web.download import post_json  # imports aiohttp

        await post_json(self._url.reveal(), encode(fields))


class TelegramSender:
    """Sends alerts to a chat of the Telegram bot."""

    def __init__(self, bot: BotAccount, chat: str) -> None:
        self._bot = bot
        self._chat = chat

    async def __call__(self, text: str, fields: Mapping[str, Any]) -> None:
        token = self._bot.token
        if token is None:
            raise ConfigError("the Telegram bot has no token")
        api = BotApi(token, self._bot.url)
        try:
            await api.call("sendMessage", chat_id=self._chat, text=text)
        finally:
            await api.close()


class AlertOptions(msgspec.Struct, frozen=True):
    """The alert rules of a gateway and how to reach their targets."""

    rules: tuple[AlertRule, ...] = ()
    senders: Mapping[str, AlertSender] = {}


class _StoredAlert(msgspec.Struct, frozen=True):
    """An alert in the store. `by` is the gateway that reported it and `seen` when it last confirmed that.

    `unsent` has the targets that the message has not reached. A resolved alert is removed once it is empty.
    """

    by: str
    since: float
    seen: float
    unsent: tuple[str, ...] = ()
    resolved: bool = False

    @property
    def key(self) -> tuple[float, bool]:
        """Key of the alert, which all its messages share."""
        return self.since, self.resolved


class _AlertMessage(NamedTuple):
    """A message to one target about an alert that began or ended."""

    state: "_RuleState"
    key: tuple[float, bool]
    text: str
    fields: Mapping[str, Any]


class _RuleState:
    """State of one rule in this gateway."""

    def __init__(self, rule: AlertRule) -> None:
        self.rule = rule
        self.value: float | None = None
        self.since: float | None = None
        """When the condition began to hold, in seconds since 1970."""
        self.sent_at: float | None = None
        self.firing = False
        self.key: tuple[float, bool] | None = None
        """Alert that this gateway reports at the moment."""
        self.queued: set[str] = set()
        """Targets with a message about that alert that is not sent yet, or could not be sent so far."""
        self.reached: set[str] = set()
        """Targets that a message about that alert has reached."""
        self.errors: dict[str, str] = {}

    def unsent(self, stored: _StoredAlert, targets: Sequence[str]) -> tuple[str, ...]:
        reached = self.reached if self.key == stored.key else ()
        return tuple([target for target in stored.unsent if target in targets and target not in reached])

    def shape(self, check_error: str) -> wire.AlertShape:
        state = "firing" if self.firing else "pending" if self.since is not None else "ok"
        sent_at = int(self.sent_at * 1000) if self.sent_at is not None else None
        since = int(self.since * 1000) if self.since is not None else None
        return wire.AlertShape(
            self.rule.text, state, self.value, since, sent_at, check_error or "; ".join(self.errors.values())
        )


class Monitor:
    """Collects live figures of a gateway, checks the alert rules against them and sends alerts."""

    def __init__(
        self,
        atlas: Atlas,
        metrics: Metrics,
        options: AlertOptions,
        installation: InstallationPort | None,
    ) -> None:
        self._atlas = atlas
        self._store = cast(Store, atlas.store)
        self._metrics = metrics
        self._options = options
        self._installation = installation
        self._started = time.monotonic()
        self._id = new_id()
        self._states = [_RuleState(rule) for rule in options.rules]
        self._texts = {rule.text for rule in options.rules}
        self._check_error = ""
        self._warned_at = -_CONFIRM_INTERVAL
        self._storing = asyncio.Lock()
        self._outboxes = {target: asyncio.Queue[_AlertMessage]() for target in options.senders}

    async def live(self) -> wire.LiveStatus:
        """Return the live figures."""
        now, cluster = time.monotonic(), await self._installation.cluster() if self._installation else None
        queue, registry = await self._queue(cluster), self._atlas.registry
        ended, first_output, duration, models = self._own_figures(now) if cluster is None else _merge_figures(cluster)
        return wire.LiveStatus(
            queue=queue,
            members=self._members(cluster, queue.running),
            ended=ended,
            first_output=_latency(first_output),
            duration=_latency(duration),
            models=models,
            rate_limits=tuple(
                wire.RateLimitShape(
                    each.id,
                    len(each.members),
                    sum(member.busy for member in each.members),
                    each.members[0].limit.requests,
                    each.members[0].limit.tokens,
                    each.members[0].limit.at_once,
                )
                for each in registry.limited_providers()
            ),
            cooldowns=tuple(
                wire.KeyCooldownShape(each.name, each.seconds) for each in (cluster.keys if cluster else ())
            ),
            budgets=tuple([budget_shape(each) for each in await self._atlas.budget_status()]),
            alerts=tuple([state.shape(self._check_error) for state in self._states]),
            problems=cluster.problems if cluster is not None else (),
        )

    async def _queue(self, cluster: "ClusterStatus | None") -> wire.QueueShape:
        if cluster is not None:
            turns, backlog = cluster.turns, cluster.queue
            return wire.QueueShape(turns.open, turns.running, turns.waiting, turns.queued, backlog.waiting, backlog.lag)
        tenant = self._atlas.tenant
        found = [row.status for row in await self._store.open_runs() if row.tenant == tenant]
        return wire.QueueShape(len(found), *[found.count(status) for status in ("running", "waiting", "queued")])

    def _members(self, cluster: "ClusterStatus | None", running: int) -> tuple[wire.MemberShape, ...]:
        if cluster is None:
            uptime = round(time.monotonic() - self._started, 1)
            return (wire.MemberShape("alone", socket.gethostname(), os.getpid(), package_version(), uptime, running),)
        return tuple(
            wire.MemberShape(
                role=each.role,
                host=each.host,
                pid=each.pid,
                version=each.version,
                uptime=each.uptime,
                runs=each.runs,
                capacity=each.capacity,
                heartbeat_age=each.heartbeat_age,
                leads=each.leads,
                draining=each.draining,
                lost=each.lost,
            )
            for each in cluster.members
        )

    def _own_figures(self, now: float) -> "_Figures":
        """Return the figures of this process, which executes the turns that it serves."""
        turns = self._metrics.turns
        latencies = turns.first_output.percentiles(now), turns.durations.percentiles(now)
        models = tuple([_model_shape(each) for each in self._atlas.model_status()])
        return wire.EndedTurns(**turns.ended()), *latencies, models

    # Alerts

    async def run(self) -> None:
        """Check the rules until cancelled."""
        if not self._states:
            return
        tasks = BackgroundTasks("alerts")
        for target in self._outboxes:
            tasks.spawn(self._deliver(target))
        try:
            while True:
                await self._try_check()
                await asyncio.sleep(CHECK_INTERVAL)
        finally:
            await tasks.close()

    async def _try_check(self) -> None:
        """Check the rules. An error is shown with the rules, logged at most once a minute, and retried later."""
        try:
            await self.check()
        except Exception as error:  # noqa: BLE001 - no error may end the alerts
            self._check_error = f"not checked: {type(error).__name__}: {self._atlas.hide(str(error))[:300]}"
            if time.monotonic() - self._warned_at >= _CONFIRM_INTERVAL:
                self._warned_at = time.monotonic()
                logger.warning("alert rules %s", self._check_error)
        else:
            self._check_error = ""

    async def check(self) -> None:
        """Compare each rule with the current figures; store and send the changes."""
        storage = await self._installation.storage() if self._installation else None
        values = read_metrics(await self.live(), storage)
        for state in self._states:
            state.value = values[state.rule.metric]
            if not state.rule.applies(state.value):
                state.since = None
            elif state.since is None:
                state.since = time.time()
        async with self._storing:
            await self._update_stored()

    async def _update_stored(self) -> None:
        """Update the stored states. A conflict means that another gateway was faster; its state is read again."""
        store, tenant = self._store, self._atlas.tenant
        record = await store.record(tenant, *_RECORD)
        known = _read_alerts(record.body) if record is not None else {}
        now, alerts = time.time(), dict[str, _StoredAlert]()
        for state in self._states:
            found = self._next_state(state, known.get(state.rule.text), now)
            if found is not None:
                alerts[state.rule.text] = found
        others = {text: each for text, each in known.items() if text not in self._texts and now - each.seen < _STALE}
        if {**alerts, **others} != known:
            try:
                version = record.version if record is not None else 0
                await store.commit(tenant, [PutRecord(*_RECORD, encode({**alerts, **others}), version)])
            except Conflict:
                return
        for state in self._states:
            self._queue_messages(state, known.get(state.rule.text), alerts.get(state.rule.text))

    def _next_state(self, state: _RuleState, stored: _StoredAlert | None, now: float) -> _StoredAlert | None:
        """Return the new stored state of an alert; None if it has ended and all targets were notified."""
        targets = self._targets(state.rule)
        if stored is None or stored.resolved:
            if state.since is not None and now - state.since >= state.rule.hold:
                return _StoredAlert(self._id, now, now, targets)
            if stored is None:
                return None
        if stored.by != self._id and now - stored.seen < _STALE:
            return stored
        if state.since is None and not stored.resolved:
            return _StoredAlert(self._id, stored.since, now, targets, resolved=True) if targets else None
        unsent = state.unsent(stored, targets)
        if stored.resolved and not unsent:
            return None
        is_due = stored.by != self._id or now - stored.seen >= _CONFIRM_INTERVAL
        return _StoredAlert(self._id, stored.since, now if is_due else stored.seen, unsent, stored.resolved)

    def _queue_messages(self, state: _RuleState, known: _StoredAlert | None, alert: _StoredAlert | None) -> None:
        """Queue the messages of an alert that began, ended or was confirmed, for the targets they have not reached."""
        state.firing = alert is not None and not alert.resolved
        if alert is None or alert.by != self._id or (known is not None and known == alert):
            return
        if state.key != alert.key:
            state.key, state.queued, state.reached = alert.key, set(), set()
        if known is None or known.key != alert.key or known.seen != alert.seen:
            text, fields = self._describe(state, state.firing)
            for target in alert.unsent:
                if target not in state.queued:
                    state.queued.add(target)
                    self._outboxes[target].put_nowait(_AlertMessage(state, alert.key, text, fields))

    def _targets(self, rule: AlertRule) -> tuple[str, ...]:
        return tuple([target for target in self._outboxes if rule.target in (None, target)])

    async def _deliver(self, target: str) -> None:
        """Send messages to one target one after another, so that an alert never arrives after its end."""
        while True:
            message = await self._outboxes[target].get()
            state = message.state
            error = await self._try_sending(target, message)
            if not error:
                state.sent_at = time.time()
            if state.key != message.key:
                continue
            state.queued.discard(target)
            state.errors.pop(target, None)
            if error:
                state.errors[target] = error
            else:
                state.reached.add(target)
                await self._store_sent()

    async def _store_sent(self) -> None:
        """Record sent messages at once, so that no other gateway repeats them; if that fails, the next check does."""
        try:
            async with self._storing:
                await self._update_stored()
        except Exception as error:  # noqa: BLE001 - no error may end the alerts
            logger.warning("sent alert not stored yet: error=%s", self._atlas.hide(str(error))[:300])

    async def _try_sending(self, target: str, message: _AlertMessage) -> str:
        """Send to one target, with retries; return the error of the last one, empty if it was sent.

        A message that a newer one has followed is not tried again.
        """
        error = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(backoff(attempt - 1, 1.0, _MAX_DELAY))
            if attempt and message.state.key != message.key:
                break
            try:
                await self._options.senders[target](message.text, message.fields)
                return ""
            except Exception as failure:  # noqa: BLE001 - whatever a target raises must not end the monitor
                error = f"{target}: {self._atlas.hide(str(failure))[:300]}"
                logger.warning("alert not sent: target=%s attempt=%d error=%s", target, attempt + 1, error)
        return error

    def _describe(self, state: _RuleState, firing: bool) -> tuple[str, dict[str, Any]]:
        rule, hide = state.rule, self._atlas.hide
        value = "unknown" if state.value is None else f"{state.value:g}"
        text = f"[{'firing' if firing else 'resolved'}] {hide(rule.text)}: {rule.metric} is {value}"
        fields = {
            "status": "firing" if firing else "resolved",
            "rule": hide(rule.text),
            "metric": rule.metric,
            "value": state.value,
            "threshold": rule.threshold,
            "host": socket.gethostname(),
            "at": int(time.time() * 1000),
        }
        return text, {"text": text, **fields}


def _read_alerts(body: bytes) -> dict[str, _StoredAlert]:
    """Return the stored alerts. A damaged record counts as empty: an alert that is sent twice is better than none."""
    try:
        return msgspec.json.decode(body, type=dict[str, _StoredAlert])
    except msgspec.MsgspecError as error:
        logger.warning("stored alerts cannot be read and are replaced: error=%s", error)
        return {}


_Figures: TypeAlias = tuple[wire.EndedTurns, Percentiles, Percentiles, tuple[wire.ModelHealthShape, ...]]


def _merge_figures(cluster: "ClusterStatus") -> _Figures:
    """Return the figures of all members that execute turns and are alive, as of their last heartbeats."""
    alive = [(each.heartbeat_age, each.figures) for each in cluster.members if each.figures and not each.lost]
    found = [figures for _, figures in alive]
    by_model: dict[str, list[tuple[float, ModelFigures]]] = {}
    for age, figures in alive:
        for model in figures.models:
            by_model.setdefault(model.model, []).append((age, model))
    ended = wire.EndedTurns(
        sum(each.done for each in found), sum(each.failed for each in found), sum(each.cancelled for each in found)
    )
    first_output = merge_buckets(each.first_output for each in found)
    models = tuple(_model_shape(_merge_model(*item)) for item in sorted(by_model.items()))
    return ended, first_output, merge_buckets(each.duration for each in found), models


def _merge_model(model: str, found: "Sequence[tuple[float, ModelFigures]]") -> ModelStatus:
    last = max([each for _, each in found], key=lambda each: each.last_error_at)
    return ModelStatus(
        model,
        sum(each.requests for _, each in found),
        sum(each.failures for _, each in found),
        merge_buckets(each.first_chunk for _, each in found),
        last.last_error,
        last.last_error_at,
        max(0.0, *[each.cooldown - age for age, each in found]),
    )


def _model_shape(status: ModelStatus) -> wire.ModelHealthShape:
    return wire.ModelHealthShape(
        status.model,
        status.requests,
        status.failures,
        _latency(status.first_chunk),
        status.last_error,
        int(status.last_error_at * 1000) if status.last_error else None,
        round(status.cooldown, 1),
    )


def _latency(found: Percentiles) -> wire.LatencyShape:
    return wire.LatencyShape(found.count, found.p50, found.p95, found.p99)


def budget_shape(status: BudgetStatus) -> wire.BudgetShape:
    """Return a budget as clients see it."""
    resets_at = None if status.resets_at is None else int(status.resets_at * 1000)
    amounts = (status.limit, status.used, status.reserved)
    return wire.BudgetShape(status.scope, status.subject, status.measure, *amounts, status.per, resets_at)


def read_metrics(live: wire.LiveStatus, storage: wire.StorageStatus | None) -> dict[AlertMetric, float | None]:
    """Return the value of each metric; None where there is nothing to measure."""
    ended, queue = live.ended, live.queue
    requests = [(each.failures, each.requests) for each in live.models if each.requests]
    return {
        "error_rate": _share(ended.failed, ended.done + ended.failed),
        "first_token_p50": live.first_output.p50,
        "first_token_p95": live.first_output.p95,
        "first_token_p99": live.first_output.p99,
        "turn_p50": live.duration.p50,
        "turn_p95": live.duration.p95,
        "turn_p99": live.duration.p99,
        "turns_open": queue.open,
        "queue_waiting": queue.queued + queue.unassigned,
        "queue_lag": queue.lag,
        "workers_lost": sum(each.lost for each in live.members),
        "model_error_rate": max([failed / total for failed, total in requests], default=None),
        "models_cooling": sum(each.cooldown > 0 for each in live.models) + len(live.cooldowns),
        "budget_used": _largest([(each.used, each.limit) for each in live.budgets]),
        "disk_used": _share(storage.disk_total - storage.disk_free, storage.disk_total) if storage else None,
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _largest(pairs: Sequence[tuple[float, float]]) -> float | None:
    return max([used / limit for used, limit in pairs if limit], default=None)
