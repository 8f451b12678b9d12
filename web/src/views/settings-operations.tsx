// Settings › Operations: what happens now, the gateway and its machine, limits, backups, checks and the log.

import { Alert, App, Button, Segmented, Tag } from "antd";
import { useEffect, useState } from "react";
import { formatBytes, formatCount, formatDateTime, formatDuration, toSentence } from "../state/format";
import { useAppState, useClient, useQuery, useResourceReload } from "../state/hooks";
import type {
  AlertShape,
  CheckShape,
  LatencyShape,
  LimitsResult,
  LiveStatus,
  MemberShape,
  ModelHealthShape,
  OpsStatus,
  RateLimitShape,
  RunShape,
} from "../wire";
import { Budgets, Stat } from "./usage";
import { QueryResult } from "./view";
import "../styles/admin.css";

export default function OperationsSettings() {
  const status = useQuery("ops.status", {});
  useResourceReload("backup", status.reload);
  useRefresh(status.reload);
  return (
    <>
      <QueryResult query={status} what="the status">
        {(data) => <Live live={data.live} />}
      </QueryResult>
      <RunningTurns />
      {status.data && (
        <>
          <Status status={status.data} />
          <Backups status={status.data} onChange={status.reload} />
        </>
      )}
      <Checks />
      <Limits />
      <Log />
    </>
  );
}

const REFRESH_MS = 5000;

/** Reload every few seconds while the page is visible. */
function useRefresh(reload: () => void) {
  useEffect(() => {
    const timer = setInterval(() => document.visibilityState === "visible" && reload(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [reload]);
}

function Live({ live }: { live: LiveStatus }) {
  return (
    <>
      <h2 className="section-title">Now</h2>
      {live.problems?.map((problem) => (
        <Alert key={problem} type="warning" showIcon title={toSentence(problem)} />
      ))}
      <Figures live={live} />
      <Models models={live.models ?? []} limits={live.rateLimits ?? []} />
      <Members live={live} />
      {(live.budgets ?? []).length > 0 && <Budgets budgets={live.budgets ?? []} />}
      <Alerts alerts={live.alerts ?? []} />
    </>
  );
}

const seconds = (value: number | null | undefined) => (value == null ? "–" : formatDuration(value * 1000));
const tails = ({ count, p95, p99 }: LatencyShape) =>
  count ? `median; p95 ${seconds(p95)}, p99 ${seconds(p99)}` : "no turn measured";
const percent = (share: number) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

function Figures({ live }: { live: LiveStatus }) {
  const { queue, ended, firstOutput, duration } = live;
  const total = ended.done + ended.failed;
  const waiting = queue.queued + (queue.unassigned ?? 0);
  const lag = queue.lag ? `, the oldest for ${seconds(queue.lag)}` : "";
  return (
    <div className="stats" role="group" aria-label="Live figures">
      <Stat name="Running turns" value={formatCount(queue.running)} note={`${queue.waiting} waiting for a person`} />
      <Stat name="Queue" value={formatCount(waiting)} note={waiting ? `turns waiting${lag}` : "no turn waits"} />
      <Stat
        name="Error rate"
        value={total ? percent(ended.failed / total) : "–"}
        note={total ? `${ended.failed} of ${total} turns failed in 15 min` : "no turn ended in 15 min"}
      />
      <Stat name="First output" value={seconds(firstOutput.p50)} note={tails(firstOutput)} />
      <Stat name="Turn duration" value={seconds(duration.p50)} note={tails(duration)} />
    </div>
  );
}

function Models({ models, limits }: { models: readonly ModelHealthShape[]; limits: readonly RateLimitShape[] }) {
  if (models.length === 0 && limits.length === 0) return null;
  return (
    <section className="panel">
      <header>
        <h2>Models</h2>
        <span className="muted">Last 15 minutes</span>
      </header>
      {models.length > 0 && (
        <div className="scroll-x" role="region" aria-label="Models" tabIndex={0}>
          <table className="totals live-table">
            <thead>
              <tr>
                <th>Model</th>
                <th>Health</th>
                <th className="number">Requests</th>
                <th className="number">Failed</th>
                <th className="number">First chunk</th>
              </tr>
            </thead>
            <tbody>
              {models.map((model) => (
                <tr key={model.model}>
                  <td>{model.model}</td>
                  <td>
                    <Health model={model} />
                  </td>
                  <td className="number" data-label="Requests">
                    {formatCount(model.requests)}
                  </td>
                  <td className="number" data-label="Failed">
                    {formatCount(model.failures)}
                  </td>
                  <td className="number" data-label="First chunk">
                    {seconds(model.firstChunk.p50)}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {limits.map((limit) => (
        <p className="muted" key={limit.provider}>
          {limit.provider}: {describeLimit(limit)}
        </p>
      ))}
    </section>
  );
}

function Health({ model }: { model: ModelHealthShape }) {
  if (model.cooldown) return <Tag color="error">Resting for {seconds(model.cooldown)}</Tag>;
  if (model.failures === 0) return <Tag color="success">OK</Tag>;
  const failing = model.failures === model.requests;
  return (
    <Tag color={failing ? "error" : "warning"}>{`Last error: ${(model.lastError ?? "").replaceAll("_", " ")}`}</Tag>
  );
}

function describeLimit({ keys, busy, requests, tokens, atOnce }: RateLimitShape): string {
  const parts = [keys === 1 ? "1 key" : `${keys} keys`, busy === 1 ? "1 request running" : `${busy} requests running`];
  if (requests != null) parts.push(`at most ${formatCount(requests)} requests per minute`);
  if (tokens != null) parts.push(`at most ${formatCount(tokens)} tokens per minute`);
  if (atOnce != null) parts.push(`at most ${formatCount(atOnce)} at once`);
  return parts.join(", ");
}

const ROLES: Record<string, string> = {
  alone: "Gateway",
  gateway: "Gateway",
  worker: "Worker",
  all: "Gateway and worker",
};

function Members({ live }: { live: LiveStatus }) {
  const { members } = live;
  if (members.length === 1 && members[0]?.role === "alone") return null;
  return (
    <section className="panel">
      <header>
        <h2>Cluster</h2>
      </header>
      <div className="scroll-x" role="region" aria-label="Cluster" tabIndex={0}>
        <table className="totals live-table">
          <thead>
            <tr>
              <th>Process</th>
              <th>State</th>
              <th className="number">Turns</th>
              <th className="number">Last heartbeat</th>
              <th className="number">Running for</th>
            </tr>
          </thead>
          <tbody>
            {members.map((member) => (
              <tr key={`${member.host} ${member.pid}`}>
                <td>
                  {ROLES[member.role] ?? member.role}{" "}
                  <span className="muted">
                    {member.host} · {member.pid} · {member.version}
                  </span>
                </td>
                <td>
                  <MemberState member={member} />
                </td>
                <td className="number" data-label="Turns">
                  {formatCount(member.runs)}
                  {member.capacity ? ` of ${formatCount(member.capacity)}` : ""}
                </td>
                <td className="number" data-label="Heartbeat">
                  {seconds(member.heartbeatAge)} ago
                </td>
                <td className="number" data-label="Running for">
                  {seconds(member.uptime)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {(live.cooldowns ?? []).map(({ name, seconds: left }) => (
        <p className="muted" key={name}>
          Key {name} rests for {seconds(left)}
        </p>
      ))}
    </section>
  );
}

function MemberState({ member }: { member: MemberShape }) {
  if (member.lost) return <Tag color="error">Lost</Tag>;
  if (member.draining) return <Tag color="warning">Shutting down</Tag>;
  return <Tag color="success">{member.leads ? "Leader" : "OK"}</Tag>;
}

const ALERT_COLOURS = { ok: "success", pending: "warning", firing: "error" } as const;
const ALERT_NAMES = { ok: "OK", pending: "Pending", firing: "Firing" } as const;

function Alerts({ alerts }: { alerts: readonly AlertShape[] }) {
  return (
    <section className="panel">
      <header>
        <h2>Alerts</h2>
      </header>
      {alerts.length === 0 ? (
        <p className="muted">No alert rules. Add some with the setting alerts, such as error_rate &gt; 10% for 5m.</p>
      ) : (
        <ul className="devices" aria-label="Alerts">
          {alerts.map((alert) => (
            <li className="setting" key={alert.rule}>
              <div>
                <strong>{alert.rule}</strong> <Tag color={ALERT_COLOURS[alert.state]}>{ALERT_NAMES[alert.state]}</Tag>
                <p className="muted">{describeAlert(alert)}</p>
                {alert.error && <p className="alert-error">{describeFailure(alert.error)}</p>}
              </div>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** An error names the target that was not reached, or says that the rule was not checked. */
function describeFailure(error: string) {
  return error.startsWith("not checked") ? `N${error.slice(1)}` : `Not sent to ${error}`;
}

const SHARES = new Set(["error_rate", "model_error_rate", "budget_used", "disk_used"]);
const TIMES = /^(first_token|turn)_p|^queue_lag$/;

/** Format the value of a rule such as `error_rate > 10%` in the unit of its metric. */
function alertValue(rule: string, value: number): string {
  const metric = rule.split(/[\s<>]/, 1)[0] ?? "";
  if (SHARES.has(metric)) return percent(value);
  return TIMES.test(metric) ? seconds(value) : String(Number(value.toPrecision(3)));
}

function describeAlert({ rule, value, since, sentAt }: AlertShape): string {
  const parts = [value == null ? "No value yet" : `Now ${alertValue(rule, value)}`];
  if (since != null) parts.push(`since ${formatDateTime(since)}`);
  if (sentAt != null) parts.push(`last message ${formatDateTime(sentAt)}`);
  return parts.join(" · ");
}

function Status({ status }: { status: OpsStatus }) {
  const { storage } = status;
  const used = storage.diskTotal - storage.diskFree;
  return (
    <>
      <h2 className="section-title">Gateway</h2>
      <dl className="panel facts">
        <div>
          <dt>Version</dt>
          <dd>
            {status.version} on Python {status.python}
          </dd>
        </div>
        <div>
          <dt>Running for</dt>
          <dd>{formatDuration(status.uptime * 1000)}</dd>
        </div>
        <div>
          <dt>Connected clients</dt>
          <dd>{formatCount(status.clients)}</dd>
        </div>
        <div>
          <dt>Data folder</dt>
          <dd>{storage.home}</dd>
        </div>
        <div>
          <dt>Database</dt>
          <dd>
            {storage.database}
            {storage.databaseSize != null && ` · ${formatBytes(storage.databaseSize)}`}
          </dd>
        </div>
        <div>
          <dt>Disk</dt>
          <dd>
            {formatBytes(storage.diskFree)} free, {formatBytes(used)} of {formatBytes(storage.diskTotal)} used
          </dd>
        </div>
      </dl>
    </>
  );
}

function Backups({ status, onChange }: { status: OpsStatus; onChange: () => void }) {
  const client = useClient();
  const { message } = App.useApp();
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const backups = status.storage.backups ?? [];
  const backUp = async () => {
    setBusy(true);
    setProblem("");
    try {
      const { backup } = await client.request("ops.backup", {});
      if (backup.problem) setProblem(`The backup is an exact copy, but ${backup.problem}.`);
      else message.success(`Backed up, ${formatBytes(backup.size)}.`);
      onChange();
    } catch (error) {
      setProblem(toSentence((error as Error).message));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <h2 className="section-title">Backups</h2>
      <div className="panel stack">
        <p className="muted">
          A backup is one file with all chats, runs and the audit log. Keys and tokens are not in it. To go back to one,
          stop the gateway and run: atlas store restore FILE
        </p>
        {problem && <Alert type="error" showIcon title={problem} />}
        {backups.length > 0 && (
          <ul className="devices" aria-label="Backups">
            {backups.map((backup) => (
              <li className="setting" key={backup.file}>
                <div>
                  <strong>{formatDateTime(backup.createdAt)}</strong>
                  <p className="muted">
                    {backup.file} · {formatBytes(backup.size)}
                  </p>
                </div>
              </li>
            ))}
          </ul>
        )}
        <div>
          <Button loading={busy} onClick={() => void backUp()}>
            Back up now
          </Button>
        </div>
      </div>
    </>
  );
}

const CHECK_COLOURS = { ok: "success", notice: "warning", broken: "error" } as const;
const CHECK_NAMES = { ok: "OK", notice: "Notice", broken: "Problem" } as const;

function Checks() {
  const client = useClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [checks, setChecks] = useState<readonly CheckShape[]>();
  const run = async () => {
    setBusy(true);
    setError("");
    try {
      setChecks((await client.request("ops.doctor", {})).checks);
    } catch (failure) {
      setError(toSentence((failure as Error).message));
    } finally {
      setBusy(false);
    }
  };
  const problems = checks?.filter(({ state }) => state === "broken").length ?? 0;
  return (
    <>
      <h2 className="section-title">Checks</h2>
      <div className="panel stack">
        {error && <Alert type="error" showIcon title={error} />}
        {checks ? (
          <>
            <p role="status">
              {problems === 0 ? "Nothing is broken." : problems === 1 ? "1 problem." : `${problems} problems.`}
            </p>
            <ul className="devices" aria-label="Checks">
              {checks.map((check) => (
                <li className="setting" key={`${check.what} ${check.words}`}>
                  <div>
                    <strong>{check.what}</strong>{" "}
                    <Tag color={CHECK_COLOURS[check.state]}>{CHECK_NAMES[check.state]}</Tag>
                    <p>{toSentence(check.words)}</p>
                    {check.remedy && <p className="muted">{toSentence(check.remedy)}</p>}
                  </div>
                </li>
              ))}
            </ul>
          </>
        ) : (
          <p className="muted">Diagnose this installation and see how to fix problems.</p>
        )}
        <div>
          <Button loading={busy} onClick={() => void run()}>
            {checks ? "Run checks again" : "Run checks"}
          </Button>
        </div>
      </div>
    </>
  );
}

const OPEN = new Set<RunShape["status"]>(["queued", "running", "waiting"]);

function RunningTurns() {
  const client = useClient();
  const { message } = App.useApp();
  const query = useQuery("runs.list", { limit: 500 });
  const { sessions } = useAppState();
  const { reload } = query;
  // biome-ignore lint/correctness/useExhaustiveDependencies: a session changes whenever one of its runs starts or ends
  useEffect(() => reload(), [sessions, reload]);
  const stop = async (run: RunShape) => {
    try {
      await client.request("chat.abort", { runId: run.runId });
    } catch (error) {
      message.error((error as Error).message);
    }
    reload();
  };
  const name = (key: string) => sessions.find((session) => session.sessionKey === key)?.label || "Untitled";
  return (
    <>
      <h2 className="section-title">Running turns</h2>
      <div className="panel stack">
        <QueryResult query={query} what="running turns">
          {({ runs }) => {
            const open = runs.filter(({ status }) => OPEN.has(status));
            return open.length === 0 ? (
              <p className="muted">No turn is running.</p>
            ) : (
              <ul className="devices" aria-label="Running turns">
                {open.map((run) => (
                  <li className="setting" key={run.runId}>
                    <div>
                      <strong>{name(run.sessionKey)}</strong>
                      <p className="muted">
                        {run.agentId}
                        {run.user && ` for ${run.user}`} · {run.status} since {formatDateTime(run.createdAt)}
                      </p>
                    </div>
                    <Button
                      danger
                      aria-label={`Stop the turn in ${name(run.sessionKey)}`}
                      onClick={() => void stop(run)}
                    >
                      Stop
                    </Button>
                  </li>
                ))}
              </ul>
            );
          }}
        </QueryResult>
      </div>
    </>
  );
}

function Limits() {
  const query = useQuery("limits.get", {});
  return (
    <>
      <h2 className="section-title">Limits of tool calls</h2>
      <QueryResult query={query} what="limits">
        {(limits) => <LimitList limits={limits} />}
      </QueryResult>
    </>
  );
}

function LimitList({ limits }: { limits: LimitsResult }) {
  const show = (limit: number | null) => (limit === null ? "unlimited" : formatCount(limit));
  const used = Object.values(limits.usedToday).reduce((sum, count) => sum + count, 0);
  return (
    <dl className="panel facts">
      <div>
        <dt>Per day and agent</dt>
        <dd>
          {show(limits.perDay)}; {formatCount(used)} used today by all agents
        </dd>
      </div>
      <div>
        <dt>Per {formatDuration(limits.tickSeconds * 1000)}</dt>
        <dd>{show(limits.perTick)}</dd>
      </div>
      <div>
        <dt>At the same time</dt>
        <dd>{formatCount(limits.atOnce)}</dd>
      </div>
      <div>
        <dt>Identical calls in one turn</dt>
        <dd>{show(limits.repeats)}</dd>
      </div>
    </dl>
  );
}

type Level = "info" | "warning" | "error";
const LEVELS: { value: Level; label: string }[] = [
  { value: "info", label: "All" },
  { value: "warning", label: "Warnings" },
  { value: "error", label: "Errors" },
];

function Log() {
  const [level, setLevel] = useState<Level>("info");
  const query = useQuery("ops.logs", { level });
  return (
    <>
      <h2 className="section-title">Log</h2>
      <div className="panel stack">
        <div className="log-controls">
          <Segmented aria-label="Level" value={level} onChange={setLevel} options={LEVELS} />
          <Button onClick={query.reload}>Reload</Button>
        </div>
        <QueryResult query={query} what="the log">
          {({ lines }) =>
            lines.length === 0 ? (
              <p className="muted">Nothing logged since the gateway started.</p>
            ) : (
              <ol className="log" aria-label="Log" tabIndex={0}>
                {lines.map((line, place) => (
                  <li key={place} className={`log-${line.level}`}>
                    <time dateTime={new Date(line.time).toISOString()}>{formatDateTime(line.time)}</time>{" "}
                    <span className="log-level">{line.level}</span> {line.source}: {line.text}
                  </li>
                ))}
              </ol>
            )
          }
        </QueryResult>
      </div>
    </>
  );
}
