// Settings › Operations: the gateway and its machine, running turns, limits, backups, checks and the log.

import { Alert, App, Button, Segmented, Tag } from "antd";
import { useEffect, useState } from "react";
import { formatBytes, formatCount, formatDateTime, formatDuration, toSentence } from "../state/format";
import { useAppState, useClient, useQuery, useResourceReload } from "../state/hooks";
import type { CheckShape, LimitsResult, OpsStatus, RunShape } from "../wire";
import { QueryResult } from "./view";
import "../styles/admin.css";

export default function OperationsSettings() {
  const status = useQuery("ops.status", {});
  useResourceReload("backup", status.reload);
  return (
    <>
      <QueryResult query={status} what="the status">
        {(data) => (
          <>
            <Status status={data} />
            <Backups status={data} onChange={status.reload} />
          </>
        )}
      </QueryResult>
      <Checks />
      <RunningTurns />
      <Limits />
      <Log />
    </>
  );
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
          <p className="muted">Find out what is wrong with this installation, and how to fix it.</p>
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
        <dt>The same call in one turn</dt>
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
