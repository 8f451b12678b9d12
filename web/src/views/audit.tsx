// Audit log: one entry per tool call and per change of a setting, updated live. Entries are hash-chained, so that tampering can be detected.

import { AuditOutlined, SafetyOutlined } from "@ant-design/icons";
import { Alert, Button, Input, Select, Space, Table, Tag } from "antd";
import { type Key, useEffect, useState } from "react";
import { ExactText } from "../components/exact-text";
import { RouteLink } from "../components/link";
import { useRoute } from "../layout/router";
import {
  formatDateTime,
  formatDuration,
  formatIdentifier,
  formatTime,
  formatValue,
  summarizeArguments,
  toSentence,
} from "../state/format";
import { useAppState, useClient, usePages } from "../state/hooks";
import { describeRule } from "../state/rules";
import { toSafeLine } from "../state/unicode-safety";
import type { AuditShape } from "../wire";
import { ACTIVITY_TABS, EmptyState, ShowMore, View } from "./view";

type Level = "info" | "warn" | "error";

interface AuditEntry {
  actorExternalId: string;
  entityId: string;
  level: Level;
  message: string;
  success: boolean;
  timestamp: number;
  action?: string;
  entityType?: string;
  meta: {
    arguments?: Record<string, unknown>;
    result?: unknown;
    duration_ms?: number;
    error?: string | null;
    run_id?: string;
    call_id?: string;
    rule?: string;
    verdict?: string;
    approved_by?: string;
    declined?: string;
    denied?: { by: string; reason?: string };
    user?: string;
    /** What came of a change: created, changed, removed, failed or interrupted. */
    outcome?: string;
    diff?: string;
  };
}

const isEdit = (entry: AuditEntry): boolean => entry.action === "EDIT";

const entryOf = (row: AuditShape): AuditEntry => row.entry as unknown as AuditEntry;

/** Entries of a run among which the linked one is looked for. */
const LINKED_LIMIT = 500;

const LEVELS: { value: Level; label: string; color: string }[] = [
  { value: "info", label: "Done", color: "success" },
  { value: "warn", label: "Rejected", color: "warning" },
  { value: "error", label: "Failed", color: "error" },
];

export default function AuditLog() {
  const { agents } = useAppState();
  const [agentId, setAgentId] = useState<string>();
  const [tool, setTool] = useState<string>();
  const [level, setLevel] = useState<Level>();
  const [user, setUser] = useState<string>();
  const [firstDay, setFirstDay] = useState("");
  const [lastDay, setLastDay] = useState("");
  const from = startOfDay(firstDay);
  const to = startOfDay(lastDay, 1);
  const filters: Filters = {
    ...(agentId ? { agentId } : {}),
    ...(tool ? { tool } : {}),
    ...(level ? { level } : {}),
    ...(user ? { user } : {}),
    ...(from !== undefined ? { from } : {}),
    ...(to !== undefined ? { to } : {}),
  };
  const { rows: listed, hasMore, loadMore, loading, error } = useAuditEntries(filters);
  const { id } = useRoute();
  const linked = useLinkedEntry(id);
  const [expanded, setExpanded] = useState<readonly Key[]>([]);
  const seq = linked?.seq;
  useEffect(() => {
    if (seq === undefined) return;
    setExpanded((previous) => [...new Set([...previous, seq])]);
    document.querySelector(`[data-row-key="${seq}"]`)?.scrollIntoView({ block: "center" });
  }, [seq]);
  const tools = [...new Set(agents.flatMap((agent) => agent.tools))].sort();
  const filtered = Object.keys(filters).length > 0;
  const isListed = !linked || filtered || listed.some((row) => row.seq === linked.seq);
  const rows = isListed ? listed : [...listed, linked].sort((a, b) => b.seq - a.seq);
  return (
    <View
      title="Audit log"
      description="Every tool call and every settings change, in a tamper-evident log."
      tabs={ACTIVITY_TABS}
      controls={<VerifyButton />}
    >
      <Space wrap className="filters">
        <Select
          allowClear
          placeholder="All agents"
          aria-label="Agent"
          value={agentId}
          onChange={setAgentId}
          options={agents.map(({ id }) => ({ value: id, label: id }))}
        />
        <Select
          allowClear
          showSearch
          placeholder="All tools"
          aria-label="Tool"
          value={tool}
          onChange={setTool}
          options={tools.map((name) => ({ value: name, label: name }))}
        />
        <Select
          allowClear
          placeholder="All outcomes"
          aria-label="Outcome"
          value={level}
          onChange={setLevel}
          options={LEVELS.map(({ value, label }) => ({ value, label }))}
        />
        <PersonSelect rows={listed} value={user} onChange={setUser} />
        <Space wrap>
          <Input
            type="date"
            prefix="From"
            aria-label="From"
            value={firstDay}
            max={lastDay}
            onChange={(event) => setFirstDay(event.target.value)}
          />
          <Input
            type="date"
            prefix="To"
            aria-label="To"
            value={lastDay}
            min={firstDay}
            onChange={(event) => setLastDay(event.target.value)}
          />
        </Space>
      </Space>
      {error && <Alert type="warning" showIcon title={error} />}
      {linked === null && <Alert type="info" showIcon title="The audit log has no such entry." />}
      {!loading && !error && rows.length === 0 ? (
        <EmptyState icon={<AuditOutlined aria-hidden />} title={filtered ? "No matching entries" : "No entries yet"}>
          {filtered ? "Remove a filter to see more entries." : "An entry appears here whenever an agent calls a tool."}
        </EmptyState>
      ) : (
        <Table
          size="small"
          className="phone-cards"
          rowKey="seq"
          loading={loading && rows.length === 0}
          dataSource={rows}
          pagination={false}
          scroll={{ x: 820 }}
          tableLayout="fixed"
          rowClassName={(row) => (row.seq === seq ? "linked-row" : "")}
          expandable={{
            expandedRowRender: (row) => <EntryDetails row={row} />,
            expandRowByClick: true,
            expandedRowKeys: expanded,
            onExpandedRowsChange: setExpanded,
          }}
          columns={COLUMNS}
        />
      )}
      {hasMore && <ShowMore onClick={loadMore} />}
    </View>
  );
}

/** A person to filter by: one of those whose entries were listed, or one whose name is typed. */
function PersonSelect(props: {
  rows: AuditShape[];
  value: string | undefined;
  onChange: (user: string | undefined) => void;
}) {
  const [typed, setTyped] = useState("");
  const [people, setPeople] = useState<readonly string[]>([]);
  const listed = JSON.stringify([...new Set(props.rows.flatMap((row) => peopleOf(entryOf(row))))]);
  useEffect(() => {
    setPeople((previous) => [...new Set([...previous, ...(JSON.parse(listed) as string[])])].sort());
  }, [listed]);
  const name = typed.trim();
  const names = !name || people.includes(name) ? people : [name, ...people];
  return (
    <Select
      allowClear
      showSearch={{ onSearch: setTyped }}
      placeholder="All people"
      aria-label="Person"
      value={props.value}
      onChange={props.onChange}
      options={names.map((each) => ({ value: each, label: toSafeLine(each) }))}
    />
  );
}

/** Who made a change or asked for a call, who allowed it and who denied it. */
function peopleOf({ meta }: AuditEntry): string[] {
  return [meta.user, meta.approved_by, meta.denied?.by].flatMap((name) => name || []);
}

/** The time when a local day such as 2026-11-30 starts, or a later day; undefined for an empty field. */
function startOfDay(day: string, daysLater = 0): number | undefined {
  const [year, month, date] = day.split("-").map(Number);
  if (!year || !month || !date) return undefined;
  return new Date(year, month - 1, date + daysLater).getTime();
}

const COLUMNS = [
  { title: "#", dataIndex: "seq", width: 62, className: "number phone-hidden" },
  {
    title: "Time",
    key: "time",
    className: "phone-meta",
    width: 150,
    render: (_: unknown, row: AuditShape) => formatDateTime(entryOf(row).timestamp),
  },
  {
    title: "Who",
    key: "agent",
    className: "phone-meta",
    ellipsis: true,
    width: 110,
    render: (_: unknown, row: AuditShape) => entryOf(row).actorExternalId,
  },
  {
    title: "Tool or setting",
    key: "tool",
    className: "phone-title",
    width: 150,
    render: (_: unknown, row: AuditShape) => {
      const entry = entryOf(row);
      return isEdit(entry) ? formatIdentifier(entry.entityType ?? "") : <code>{entry.entityId}</code>;
    },
  },
  {
    title: "What",
    key: "arguments",
    className: "phone-line",
    ellipsis: true,
    render: (_: unknown, row: AuditShape) => {
      const entry = entryOf(row);
      if (isEdit(entry)) return <span className="truncate">{toSentence(toSafeLine(entry.message))}</span>;
      return <code className="truncate">{summarizeArguments(entry.meta.arguments ?? {})}</code>;
    },
  },
  {
    title: "Outcome",
    key: "outcome",
    className: "phone-state",
    width: 120,
    render: (_: unknown, row: AuditShape) => <OutcomeTag entry={entryOf(row)} />,
  },
  {
    title: "Duration",
    key: "duration",
    width: 90,
    className: "number phone-meta",
    render: (_: unknown, row: AuditShape) =>
      isEdit(entryOf(row)) ? "" : formatDuration(entryOf(row).meta.duration_ms ?? 0),
  },
];

/** The outcome in one word: denied by a person or by a rule, or the call itself succeeded or failed. */
function outcomeOf(entry: AuditEntry): { label: string; color: string } {
  const { success, meta } = entry;
  if (isEdit(entry))
    return { label: formatIdentifier(meta.outcome ?? "changed"), color: success ? "success" : "error" };
  if (success) return { label: "Done", color: "success" };
  if (meta.error === "declined") return { label: meta.denied?.by ? "Denied" : "Not approved", color: "warning" };
  if (meta.error === "not_permitted") return { label: "Blocked by rule", color: "warning" };
  return { label: formatIdentifier(meta.error ?? "failed"), color: "error" };
}

function OutcomeTag({ entry }: { entry: AuditEntry }) {
  const { label, color } = outcomeOf(entry);
  return <Tag color={color}>{label}</Tag>;
}

/** Say who decided about a call, when and why. */
function Decision({ entry }: { entry: AuditEntry }) {
  const { principal, agents } = useAppState();
  const { meta, timestamp, actorExternalId, entityId } = entry;
  const person = (id: string) => (id === principal?.id ? "you" : toSafeLine(id));
  const agent = agents.find(({ id }) => id === actorExternalId)?.name || actorExternalId;
  const command = meta.arguments?.command;
  const wanted =
    typeof command === "string" ? (
      <>
        wanted to run <code>{toSafeLine(command)}</code>
      </>
    ) : (
      <>
        wanted to use <code>{entityId}</code>
      </>
    );
  const rule = meta.rule ? `Rule: ${toSafeLine(describeRule(meta.rule))}.` : "";
  if (meta.error === "declined" || meta.error === "not_permitted")
    return (
      <p>
        <strong>{outcomeOf(entry).label}</strong>
        {meta.denied?.by && ` by ${person(meta.denied.by)}`} at {formatTime(timestamp)}
        {meta.denied?.reason && `: “${toSafeLine(meta.denied.reason, 500)}”`}. {toSafeLine(agent)} {wanted}.{" "}
        {!meta.denied?.by && meta.declined && `${toSentence(toSafeLine(meta.declined, 500))}. `}
        {rule}
      </p>
    );
  return (
    <p>
      <strong>{outcomeOf(entry).label}</strong>
      {meta.approved_by !== undefined &&
        ` · Allowed by ${meta.approved_by ? person(meta.approved_by) : "an unnamed person"}`}
      {rule && ` · ${rule}`}
    </p>
  );
}

/** Say who changed which setting, when and how. */
function EditDetails({ entry }: { entry: AuditEntry }) {
  const { diff } = entry.meta;
  return (
    <>
      <p>
        {toSentence(toSafeLine(entry.message, 500))} at {formatTime(entry.timestamp)}.
      </p>
      {diff && <ExactText text={diff} label="Changes" />}
    </>
  );
}

function EntryDetails({ row }: { row: AuditShape }) {
  const entry = entryOf(row);
  const { meta } = entry;
  return (
    <div className="stack entry-details">
      {isEdit(entry) ? (
        <EditDetails entry={entry} />
      ) : (
        <>
          <Decision entry={entry} />
          <ExactText text={formatValue(meta.arguments ?? {})} label="Arguments" />
        </>
      )}
      {meta.result !== undefined && <ExactText text={formatValue(meta.result)} label="Result" />}
      <p className="muted">
        {meta.run_id && <RouteLink to={{ view: "runs", id: meta.run_id }}>View run</RouteLink>}{" "}
        <code className="hash" title={row.hash}>
          {row.hash.slice(0, 16)}…
        </code>
      </p>
    </div>
  );
}

function VerifyButton() {
  const client = useClient();
  const [state, setState] = useState<{ busy: boolean; rows?: number; broken?: number; error?: string }>({
    busy: false,
  });
  const verify = () => {
    setState({ busy: true });
    client.request("audit.verify", {}).then(
      ({ rows, broken }) => setState({ busy: false, rows, broken: broken ?? undefined }),
      (error: Error) => setState({ busy: false, error: error.message }),
    );
  };
  return (
    <Space wrap>
      {state.error && <Tag color="error">{state.error}</Tag>}
      {state.broken !== undefined && <Tag color="error">Entry {state.broken} was changed or removed.</Tag>}
      {state.rows !== undefined && state.broken === undefined && (
        <Tag color="success">
          {state.rows === 1 ? "Verified: 1 entry, unbroken." : `Verified: ${state.rows} entries, unbroken.`}
        </Tag>
      )}
      <Button icon={<SafetyOutlined aria-hidden />} disabled={state.busy} onClick={verify}>
        Verify log
      </Button>
    </Space>
  );
}

/** The entry that the address names, by its number or as `run:call`. Null if there is none. */
function useLinkedEntry(id: string): AuditShape | null | undefined {
  const client = useClient();
  const { status } = useAppState();
  const [found, setFound] = useState<AuditShape | null>();
  useEffect(() => {
    if (!id || status !== "online") {
      setFound(undefined);
      return;
    }
    let stale = false;
    const split = id.indexOf(":");
    const params =
      split < 0 ? { limit: 1, cursor: `${Number(id) + 1}` } : { limit: LINKED_LIMIT, runId: id.slice(0, split) };
    const isLinked = (row: AuditShape) =>
      split < 0 ? `${row.seq}` === id : entryOf(row).meta.call_id === id.slice(split + 1);
    client.request("audit.list", params).then(
      ({ entries }) => !stale && setFound(entries.find(isLinked) ?? null),
      () => !stale && setFound(null),
    );
    return () => {
      stale = true;
    };
  }, [client, id, status]);
  return id ? found : undefined;
}

type Filters = { agentId?: string; tool?: string; level?: Level; user?: string; from?: number; to?: number };

function matches(entry: AuditEntry, { agentId, tool, level, user, from, to }: Filters): boolean {
  return (
    (!agentId || agentId === entry.actorExternalId) &&
    (!tool || tool === entry.entityId) &&
    (!level || level === entry.level) &&
    (!user || peopleOf(entry).includes(user)) &&
    (from === undefined || from <= entry.timestamp) &&
    (to === undefined || entry.timestamp < to)
  );
}

/** The newest entries, with new ones added live and older ones on demand. */
function useAuditEntries(filters: Filters) {
  const client = useClient();
  const { pages, ...query } = usePages("audit.list", { limit: 50, ...filters });
  const [live, setLive] = useState<AuditShape[]>([]);
  const key = JSON.stringify(filters);
  // biome-ignore lint/correctness/useExhaustiveDependencies: other filters or a new first page make the live ones outdated
  useEffect(() => setLive([]), [pages[0], key]);
  useEffect(() => {
    const current = JSON.parse(key) as Filters;
    const addEntry = (row: AuditShape) => {
      if (matches(entryOf(row), current)) setLive((previous) => [row, ...previous]);
    };
    client.auditListeners.add(addEntry);
    client.request("audit.subscribe", {}).catch(() => undefined);
    return () => {
      client.auditListeners.delete(addEntry);
    };
  }, [client, key]);
  const seen = new Set<number>();
  const rows = [...live, ...pages.flatMap((page) => page.entries)].filter(
    (row) => !seen.has(row.seq) && seen.add(row.seq),
  );
  return { ...query, rows };
}
