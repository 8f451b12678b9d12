// Permissions: which agent may call which tool. Shows what changes mean for recorded calls before they are saved.

import { Alert, App, Button, Modal, Select } from "antd";
import { type KeyboardEvent, useEffect, useMemo, useRef, useState } from "react";
import { EditConflictAlert, useLeaveGuard } from "../components/edit-conflict";
import { type Editable, useEditForm } from "../state/editing";
import { formatDateTime, toSentence } from "../state/format";
import { useAppState, useClient, useMediaQuery, useQuery } from "../state/hooks";
import {
  type Cell,
  type CellValues,
  cellKey,
  describeCell,
  describeSimulation,
  describeWidening,
  EVERYONE,
  flattenCells,
  listChanges,
} from "../state/permissions";
import type { PolicyResult, PolicySimulated, PolicySubject, PolicyTool } from "../wire";
import { QueryResult } from "./view";

const DAYS = [1, 7, 30, 90];
const SIMULATION_DELAY_MS = 300;
const KEYS: Record<string, Cell | null> = { "1": "yes", "2": "ask", "3": "no", "0": null, Backspace: null };

export default function Permissions() {
  const query = useQuery("policy.get", {});
  return (
    <QueryResult query={query} what="permissions">
      {(policy) => <PermissionsForm initial={policy} />}
    </QueryResult>
  );
}

const toEditable = (policy: PolicyResult): Editable<CellValues> => ({
  version: policy.version ?? null,
  changedBy: policy.changedBy ?? "",
  changedAt: policy.changedAt ?? null,
  value: flattenCells(policy.cells),
});

function PermissionsForm({ initial }: { initial: PolicyResult }) {
  const client = useClient();
  const { principal } = useAppState();
  const { modal, message: toast } = App.useApp();
  const narrow = useMediaQuery("(max-width: 640px)");
  const [policy, setPolicy] = useState(initial);
  const [days, setDays] = useState(7);
  const [showCalls, setShowCalls] = useState(false);
  const saved = useRef<CellValues>({});
  const allowWider = useRef(false);
  const load = async () => {
    const found = await client.request("policy.get", {});
    setPolicy(found);
    return toEditable(found);
  };
  const form = useEditForm<CellValues>({
    kind: "policy",
    id: "permissions",
    initial: toEditable(initial),
    read: (value) => flattenCells((value as Pick<PolicyResult, "cells">).cells),
    load,
    write: async (value, expectedVersion) => {
      const changes = listChanges(saved.current, value);
      const edited = await client.request("policy.put", { changes, expectedVersion, allowWider: allowWider.current });
      if (edited.policy) setPolicy(edited.policy);
      return edited.policy ? toEditable(edited.policy) : { version: edited.version ?? null, value };
    },
  });
  saved.current = form.saved;
  const changes = useMemo(() => listChanges(form.saved, form.value), [form.saved, form.value]);
  const simulation = useSimulation(changes, days);
  useLeaveGuard(changes.length > 0 && !form.busy, "permissions");
  const nameOf = (id: string) => {
    const subject = policy.subjects.find((each) => each.id === id);
    return subject?.name || id;
  };
  const done = () => void toast.success("Saved. The new permissions apply now.");
  /** Send the changes, after a confirmation if they allow more than now. */
  const confirmed = async (send: () => Promise<Editable<CellValues> | undefined>) => {
    const { result } = simulation;
    if (!result) return undefined;
    allowWider.current =
      result.wider.length > 0 &&
      (await modal.confirm({
        title: "Allow more than now?",
        content: describeWidening(result, nameOf),
        okText: "Allow without asking",
        okButtonProps: { danger: true },
      }));
    return result.wider.length === 0 || allowWider.current ? send() : undefined;
  };
  const save = async () => {
    if (await confirmed(form.save)) done();
  };
  const set = (tool: string, subject: string, cell: Cell | null) => {
    const value = { ...form.value };
    if (cell === null) delete value[cellKey(tool, subject)];
    else value[cellKey(tool, subject)] = cell;
    form.replace(value);
  };
  const grid: GridProps = {
    policy,
    effective: simulation.result?.effective ?? policy.effective,
    value: form.value,
    saved: form.saved,
    editable: principal?.scopes.includes("admin") ?? false,
    nameOf,
    onSet: set,
  };
  return (
    <div className="stack permissions">
      <p className="muted">
        What each agent may do. · means inherited, * means changed. Stored in <code>{policy.file}</code>.
      </p>
      {policy.notice && <Alert type="warning" showIcon title={toSentence(policy.notice)} />}
      <EditConflictAlert form={{ ...form, overwrite: () => confirmed(form.overwrite) }} labels={{}} onSaved={done} />
      {form.error && <Alert type="error" showIcon role="alert" title={toSentence(form.error)} />}
      {narrow ? <PermissionList {...grid} /> : <PermissionGrid {...grid} />}
      {changes.length > 0 && (
        <section className="edit-bar" aria-label="Unsaved changes">
          <p role="status">
            <strong>{`${changes.length} ${changes.length === 1 ? "change" : "changes"}.`}</strong>{" "}
            {simulation.error
              ? toSentence(simulation.error)
              : simulation.result
                ? describeSimulation(simulation.result, days)
                : "Checking recorded calls…"}
          </p>
          <Select
            aria-label="Recorded calls of"
            value={days}
            onChange={setDays}
            options={DAYS.map((value) => ({ value, label: value === 1 ? "1 day" : `${value} days` }))}
          />
          {(simulation.result?.calls.length ?? 0) > 0 && <Button onClick={() => setShowCalls(true)}>See calls</Button>}
          <Button disabled={form.busy} onClick={form.discard}>
            Discard
          </Button>
          <Button type="primary" loading={form.busy} disabled={!simulation.result} onClick={() => void save()}>
            Save
          </Button>
        </section>
      )}
      <Modal open={showCalls} title="Affected calls" footer={null} width={760} onCancel={() => setShowCalls(false)}>
        {simulation.result && <CallList result={simulation.result} nameOf={nameOf} />}
      </Modal>
    </div>
  );
}

/** Decide the recorded calls again whenever the changes are different. */
function useSimulation(changes: ReturnType<typeof listChanges>, days: number) {
  const client = useClient();
  const [state, setState] = useState<{ result?: PolicySimulated; error?: string }>({});
  const key = JSON.stringify(changes);
  useEffect(() => {
    setState({});
    if (key === "[]") return;
    let stale = false;
    const timer = setTimeout(() => {
      client.request("policy.simulate", { changes: JSON.parse(key) as typeof changes, days }).then(
        (result) => !stale && setState({ result }),
        (error: Error) => !stale && setState({ error: error.message }),
      );
    }, SIMULATION_DELAY_MS);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [client, key, days]);
  return state;
}

interface GridProps {
  policy: PolicyResult;
  effective: PolicyResult["effective"];
  value: CellValues;
  saved: CellValues;
  editable: boolean;
  nameOf: (subject: string) => string;
  onSet: (tool: string, subject: string, cell: Cell | null) => void;
}

const SOURCES: Record<string, string> = { builtin: "Built in", mcp: "MCP servers", plugin: "Plugins", custom: "Own" };

function groupBySource(tools: PolicyTool[]): [string, PolicyTool[]][] {
  const groups = new Map<string, PolicyTool[]>();
  for (const tool of [...tools].sort((a, b) => a.name.localeCompare(b.name))) {
    const name = SOURCES[tool.source] ?? "Only in the policy";
    groups.set(name, [...(groups.get(name) ?? []), tool]);
  }
  return [...groups];
}

function PermissionGrid(props: GridProps) {
  const { policy } = props;
  const move = (event: KeyboardEvent<HTMLTableElement>) => {
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const step = steps[event.key];
    const from = (event.target as HTMLElement).closest("select");
    if (!step || !from || event.altKey) return;
    const rows = [...event.currentTarget.querySelectorAll("tr")].filter((row) => row.querySelector("select"));
    const row = rows.findIndex((each) => each.contains(from));
    const column = [...(rows[row]?.querySelectorAll("select") ?? [])].indexOf(from);
    const target = rows[row + step[0]]?.querySelectorAll("select")[column + step[1]];
    event.preventDefault();
    target?.focus();
  };
  return (
    <section className="permission-grid" aria-label="Permissions by tool and agent">
      <table onKeyDown={move}>
        <thead>
          <tr>
            <th scope="col">Tool</th>
            {policy.subjects.map((subject) => (
              <th key={subject.id} scope="col">
                {subject.name || subject.id}
              </th>
            ))}
          </tr>
        </thead>
        {groupBySource(policy.tools).map(([source, tools]) => (
          <tbody key={source}>
            <tr>
              <th scope="rowgroup" colSpan={policy.subjects.length + 1} className="muted">
                {source}
              </th>
            </tr>
            {tools.map((tool) => (
              <tr key={tool.name}>
                <th scope="row" title={tool.description}>
                  <code>{tool.name}</code>
                </th>
                {policy.subjects.map((subject) => (
                  <td key={subject.id}>
                    <CellSelect {...props} tool={tool} subject={subject} />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        ))}
      </table>
    </section>
  );
}

function PermissionList(props: GridProps) {
  const { policy } = props;
  const [selected, setSelected] = useState(EVERYONE);
  const subject = policy.subjects.find((each) => each.id === selected) ?? policy.subjects[0];
  if (!subject) return null;
  return (
    <>
      <Select
        aria-label="Agent, role or group"
        value={subject.id}
        onChange={setSelected}
        options={policy.subjects.map((each) => ({ value: each.id, label: each.name || each.id }))}
      />
      {groupBySource(policy.tools).map(([source, tools]) => (
        <section key={source}>
          <h2 className="section-title">{source}</h2>
          <ul className="permission-list">
            {tools.map((tool) => (
              <li key={tool.name}>
                <code>{tool.name}</code>
                <CellSelect {...props} tool={tool} subject={subject} />
              </li>
            ))}
          </ul>
        </section>
      ))}
    </>
  );
}

type CellProps = GridProps & { tool: PolicyTool; subject: PolicySubject };

function CellSelect({ effective, value, saved, editable, nameOf, onSet, tool, subject }: CellProps) {
  const key = cellKey(tool.name, subject.id);
  const own = value[key];
  const found = effective[tool.name]?.[subject.id];
  const shown = own ?? found?.cell ?? "no";
  const changed = own !== saved[key];
  const source = found?.inherited ? `From ${nameOf(found.inherited)}` : "By default";
  const label = describeCell(shown, tool);
  const details = [own ? "" : source.toLowerCase(), changed ? "changed" : ""].filter(Boolean).join(", ");
  return (
    <span
      className={`permission-cell is-${shown === "yes" && tool.asks ? "ask" : shown}${own ? "" : " inherited"}${changed ? " changed" : ""}`}
    >
      <select
        value={own ?? ""}
        disabled={!editable}
        title={own ? found?.rule : source}
        aria-label={`${tool.name}, ${subject.name || subject.id}${details ? ` (${details})` : ""}`}
        onChange={({ target }) => onSet(tool.name, subject.id, (target.value || null) as Cell | null)}
        onKeyDown={(event) => {
          const cell = KEYS[event.key];
          if (cell === undefined || event.ctrlKey || event.metaKey) return;
          event.preventDefault();
          if (cell !== null || subject.id !== EVERYONE) onSet(tool.name, subject.id, cell);
        }}
      >
        {(own === undefined || subject.id !== EVERYONE) && (
          <option value="">{own === undefined ? `· ${label}` : "· Inherit"}</option>
        )}
        <option value="yes">{describeCell("yes", tool)}</option>
        <option value="ask">Ask</option>
        <option value="no">Deny</option>
      </select>
      {changed && <span aria-hidden>*</span>}
    </span>
  );
}

function CallList({ result, nameOf }: { result: PolicySimulated; nameOf: (subject: string) => string }) {
  const label = (cell: Cell) => describeCell(cell, { asks: false });
  return (
    <ul className="call-list">
      {result.calls.map((call) => (
        <li key={call.seq}>
          <span>
            <code>{call.tool}</code> {`by ${nameOf(call.agentId)}, ${formatDateTime(call.at)}`}
          </span>
          <strong>{`${label(call.before)} → ${label(call.after)}`}</strong>
          <span className="muted">{toSentence(call.rule)}</span>
        </li>
      ))}
      {result.complete === false && <li className="muted">Only the latest calls were checked.</li>}
    </ul>
  );
}
