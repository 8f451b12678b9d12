// The audit log: one line for every call of a tool, live, in a chain that shows if anything was changed.

import { AuditOutlined, SafetyOutlined } from "@ant-design/icons";
import { Alert, Button, Select, Space, Table, Tag } from "antd";
import { useEffect, useState } from "react";
import { Exact } from "../chat/exact";
import { Inside } from "../shell/link";
import { useAsked, useAtlas, useHouse } from "../state/use";
import { gistOf, momentOf, spanOf, textOf } from "../state/words";
import type { AuditShape } from "../wire";
import { Frame, Nothing } from "./frame";

interface Line {
  actorExternalId: string;
  entityId: string;
  level: "info" | "warn" | "error";
  message: string;
  success: boolean;
  timestamp: number;
  meta: {
    arguments?: Record<string, unknown>;
    result?: unknown;
    duration_ms?: number;
    error?: string | null;
    run_id?: string;
    rule?: string;
    verdict?: string;
    approved_by?: string;
    user?: string;
  };
}

const lineOf = (row: AuditShape): Line => row.entry as unknown as Line;
const LEVELS = [
  { value: "info", label: "Well" },
  { value: "warn", label: "Refused" },
  { value: "error", label: "Failed" },
];

export default function Audit() {
  const { agents } = useHouse();
  const [agentId, setAgent] = useState<string>();
  const [tool, setTool] = useState<string>();
  const [level, setLevel] = useState<"info" | "warn" | "error">();
  const filters = { ...(agentId ? { agentId } : {}), ...(tool ? { tool } : {}), ...(level ? { level } : {}) };
  const { rows, more, older, busy, error } = useLines(filters);
  const tools = [...new Set(agents.flatMap((agent) => agent.tools))].sort();
  const filtered = Object.keys(filters).length > 0;
  return (
    <Frame
      title="Audit"
      about="Every call of a tool, whatever came of it. Lines are chained by hashes: a change or a gap shows."
      extra={<Verify />}
    >
      <Space wrap className="filters">
        <Select
          allowClear
          placeholder="Any agent"
          aria-label="Agent"
          value={agentId}
          onChange={setAgent}
          options={agents.map(({ id }) => ({ value: id, label: id }))}
        />
        <Select
          allowClear
          showSearch
          placeholder="Any tool"
          aria-label="Tool"
          value={tool}
          onChange={setTool}
          options={tools.map((name) => ({ value: name, label: name }))}
        />
        <Select
          allowClear
          placeholder="Any outcome"
          aria-label="Outcome"
          value={level}
          onChange={setLevel}
          options={LEVELS}
        />
      </Space>
      {error && <Alert type="warning" showIcon title={error} />}
      {!busy && !error && rows.length === 0 ? (
        <Nothing icon={<AuditOutlined aria-hidden />} title={filtered ? "No line fits" : "Nothing was done yet"}>
          {filtered ? "Take a filter away." : "As soon as an agent calls a tool, a line appears here."}
        </Nothing>
      ) : (
        <Table
          size="small"
          rowKey="seq"
          loading={busy && rows.length === 0}
          dataSource={rows}
          pagination={false}
          scroll={{ x: 820 }}
          tableLayout="fixed"
          expandable={{ expandedRowRender: (row) => <Details row={row} />, expandRowByClick: true }}
          columns={COLUMNS}
        />
      )}
      {more && (
        <Button block type="text" onClick={older}>
          Older
        </Button>
      )}
    </Frame>
  );
}

const COLUMNS = [
  { title: "Line", dataIndex: "seq", width: 62, className: "number" },
  { title: "When", key: "when", width: 150, render: (_: unknown, row: AuditShape) => momentOf(lineOf(row).timestamp) },
  {
    title: "Agent",
    key: "agent",
    ellipsis: true,
    width: 110,
    render: (_: unknown, row: AuditShape) => lineOf(row).actorExternalId,
  },
  {
    title: "Tool",
    key: "tool",
    width: 150,
    render: (_: unknown, row: AuditShape) => <code>{lineOf(row).entityId}</code>,
  },
  {
    title: "Arguments",
    key: "arguments",
    ellipsis: true,
    render: (_: unknown, row: AuditShape) => <code className="cut">{gistOf(lineOf(row).meta.arguments ?? {})}</code>,
  },
  {
    title: "Outcome",
    key: "outcome",
    width: 120,
    render: (_: unknown, row: AuditShape) => <Outcome line={lineOf(row)} />,
  },
  {
    title: "Took",
    key: "took",
    width: 90,
    className: "number",
    render: (_: unknown, row: AuditShape) => spanOf(lineOf(row).meta.duration_ms ?? 0),
  },
];

function Outcome({ line }: { line: Line }) {
  const color = { info: "success", warn: "warning", error: "error" }[line.level];
  return <Tag color={color}>{line.success ? "done" : (line.meta.error ?? "failed").replaceAll("_", " ")}</Tag>;
}

function Details({ row }: { row: AuditShape }) {
  const { meta, message } = lineOf(row);
  return (
    <div className="stack details">
      <p>
        {message}
        {meta.rule ? ` – because: ${meta.rule}` : ""}
        {meta.approved_by ? `, allowed by ${meta.approved_by}` : ""}
      </p>
      <Exact text={textOf(meta.arguments ?? {})} label="Arguments" />
      {meta.result !== undefined && <Exact text={textOf(meta.result)} label="Result" />}
      <p className="quiet">
        {meta.run_id && <Inside to={{ view: "runs", id: meta.run_id }}>The turn behind this line</Inside>}{" "}
        <code className="hash" title={row.hash}>
          {row.hash.slice(0, 16)}…
        </code>
      </p>
    </div>
  );
}

function Verify() {
  const atlas = useAtlas();
  const [state, setState] = useState<{ busy: boolean; rows?: number; broken?: number; error?: string }>({
    busy: false,
  });
  const verify = () => {
    setState({ busy: true });
    atlas.ask("audit.verify", {}).then(
      ({ rows, broken }) => setState({ busy: false, rows, broken: broken ?? undefined }),
      (error: Error) => setState({ busy: false, error: error.message }),
    );
  };
  return (
    <Space wrap>
      {state.error && <Tag color="error">{state.error}</Tag>}
      {state.broken !== undefined && (
        <Tag color="error">Line {state.broken} does not follow from the one before it</Tag>
      )}
      {state.rows !== undefined && state.broken === undefined && (
        <Tag color="success">{state.rows === 1 ? "The one line is" : `All ${state.rows} lines are`} as written</Tag>
      )}
      <Button icon={<SafetyOutlined aria-hidden />} disabled={state.busy} onClick={verify}>
        Verify the chain
      </Button>
    </Space>
  );
}

type Filters = { agentId?: string; tool?: string; level?: "info" | "warn" | "error" };

/** The latest lines, with new ones put before them as they come. */
function useLines(filters: Filters) {
  const atlas = useAtlas();
  const first = useAsked("audit.list", { limit: 50, ...filters });
  const [fresh, setFresh] = useState<AuditShape[]>([]);
  const [pages, setPages] = useState<{ rows: AuditShape[]; cursor?: string }>();
  const key = JSON.stringify(filters);
  useEffect(() => {
    setFresh([]);
    setPages(undefined);
  }, [first.answer, key]);
  useEffect(() => {
    const wanted = JSON.parse(key) as Filters;
    const hear = (row: AuditShape) => {
      const line = lineOf(row);
      const fits =
        (!wanted.agentId || wanted.agentId === line.actorExternalId) &&
        (!wanted.tool || wanted.tool === line.entityId) &&
        (!wanted.level || wanted.level === line.level);
      if (fits) setFresh((before) => [row, ...before]);
    };
    atlas.audit.add(hear);
    atlas.ask("audit.subscribe", {}).catch(() => undefined);
    return () => void atlas.audit.delete(hear);
  }, [atlas, key]);
  const known = new Set<number>();
  const rows = [...fresh, ...(first.answer?.entries ?? []), ...(pages?.rows ?? [])].filter(
    (row) => !known.has(row.seq) && known.add(row.seq),
  );
  const cursor = pages ? pages.cursor : (first.answer?.nextCursor ?? undefined);
  const older = () => {
    if (cursor === undefined) return;
    atlas.ask("audit.list", { limit: 50, cursor, ...filters }).then(
      (page) =>
        setPages((before) => ({
          rows: [...(before?.rows ?? []), ...page.entries],
          cursor: page.nextCursor ?? undefined,
        })),
      () => undefined,
    );
  };
  return { rows, more: cursor !== undefined, older, busy: first.busy, error: first.error };
}
