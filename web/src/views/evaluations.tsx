// Evaluations: a list of all evaluations, and the results of one as a table of cases and models.

import { ArrowLeftOutlined, ExperimentOutlined } from "@ant-design/icons";
import { Button, Select, Space, Table, Tag, Tooltip } from "antd";
import { useState } from "react";
import { RouteLink } from "../components/link";
import { navigate } from "../layout/router";
import { formatCost, formatCount, formatDateTime, formatDuration } from "../state/format";
import { useQuery } from "../state/hooks";
import type {
  EvaluationColumn,
  EvaluationComparison,
  EvaluationDetails,
  EvaluationRow,
  EvaluationShape,
} from "../wire";
import { ACTIVITY_TABS, EmptyState, QueryResult, View } from "./view";

const percent = (share: number) => `${Math.round(share * 100)} %`;

export default function Evaluations({ id }: { id: string }) {
  return id ? <EvaluationPage key={id} id={id} /> : <EvaluationList />;
}

function EvaluationList() {
  const query = useQuery("evaluations.list", {});
  return (
    <View
      title="Evaluations"
      description="Files of cases that were run on this gateway’s machine, newest first."
      tabs={ACTIVITY_TABS}
    >
      <QueryResult query={query} what="evaluations">
        {({ evaluations }) =>
          evaluations.length === 0 ? (
            <EmptyState icon={<ExperimentOutlined aria-hidden />} title="No evaluations yet">
              Run a file of cases on the gateway’s machine: <code>atlas eval cases.yaml</code>
            </EmptyState>
          ) : (
            <Table
              size="small"
              className="phone-cards"
              rowKey="id"
              dataSource={evaluations}
              pagination={{ pageSize: 25, hideOnSinglePage: true, showSizeChanger: false }}
              scroll={{ x: 820 }}
              tableLayout="fixed"
              onRow={(each) => ({
                onClick: () => navigate({ view: "evaluations", id: each.id }),
                className: "clickable",
              })}
              columns={[
                {
                  title: "Started",
                  dataIndex: "startedAt",
                  className: "phone-meta",
                  width: 160,
                  render: (at: number, each) => (
                    <RouteLink to={{ view: "evaluations", id: each.id }}>{formatDateTime(at)}</RouteLink>
                  ),
                },
                { title: "Name", dataIndex: "name", className: "phone-title", ellipsis: true },
                {
                  title: "Models",
                  dataIndex: "models",
                  className: "phone-meta",
                  ellipsis: true,
                  render: (models: string[]) => models.join(", "),
                },
                {
                  title: "Agents",
                  dataIndex: "agents",
                  className: "phone-hidden",
                  ellipsis: true,
                  render: (agents: string[]) => agents.join(", "),
                },
                {
                  title: "Passed",
                  key: "passed",
                  width: 130,
                  className: "number phone-state",
                  render: (_, each) => <Passed found={each} />,
                },
                {
                  title: "Mean score",
                  dataIndex: "score",
                  width: 110,
                  className: "number phone-hidden",
                  render: (score: number, each) => (each.results > 0 ? score.toFixed(2) : "–"),
                },
              ]}
            />
          )
        }
      </QueryResult>
    </View>
  );
}

function Passed({ found }: { found: EvaluationShape }) {
  const { results, total, passed } = found;
  if (results < total) return <Tag color="warning">{`${results} of ${total} run`}</Tag>;
  return `${passed} of ${total}`;
}

function EvaluationPage({ id }: { id: string }) {
  const [compare, setCompare] = useState("");
  const query = useQuery("evaluations.get", { id, compare });
  const others = useQuery("evaluations.list", {}).data?.evaluations.filter((each) => each.id !== id) ?? [];
  const found = query.data?.evaluation;
  return (
    <View
      title={found?.name ?? "Evaluation"}
      description={
        found ? `Started ${formatDateTime(found.startedAt)}, from ${found.file}` : "Results of an evaluation."
      }
      controls={
        <Space wrap>
          <Select
            aria-label="Compare with"
            className="compare-select"
            value={compare}
            onChange={setCompare}
            options={[
              { value: "", label: "No comparison" },
              ...others.map((each) => ({
                value: each.id,
                label: `${each.name}, ${formatDateTime(each.startedAt)}`,
              })),
            ]}
          />
          <Button icon={<ArrowLeftOutlined aria-hidden />} onClick={() => navigate({ view: "evaluations", id: "" })}>
            All evaluations
          </Button>
        </Space>
      }
    >
      <QueryResult query={query} what="this evaluation">
        {(details) => <Details details={details} />}
      </QueryResult>
    </View>
  );
}

function Details({ details }: { details: EvaluationDetails }) {
  const { columns, comparisons = [], rows, evaluation } = details;
  return (
    <div className="stack">
      <div className="stats evaluation-stats">
        {columns.map((column) => (
          <ColumnStat
            key={columnKey(column)}
            column={column}
            comparison={comparisons.find((each) => each.agent === column.agent && each.model === column.model)}
            showsAgent={evaluation.agents.length > 1}
          />
        ))}
      </div>
      <Cases details={details} />
      {rows.length < evaluation.results && (
        <p className="evaluation-note">{`The first ${formatCount(rows.length)} of ${formatCount(evaluation.results)} results.`}</p>
      )}
    </div>
  );
}

const columnKey = ({ agent, model }: { agent: string; model: string }) => `${agent} ${model}`;

interface ColumnStatProps {
  column: EvaluationColumn;
  comparison?: EvaluationComparison;
  showsAgent: boolean;
}

function ColumnStat({ column, comparison, showsAgent }: ColumnStatProps) {
  const { dollars } = column;
  const cost = dollars === null || dollars === undefined ? "cost unknown" : formatCost(dollars);
  return (
    <div className="stat">
      <span>{showsAgent ? columnKey(column) : column.model}</span>
      <strong>{`${column.passed} of ${column.results} passed`}</strong>
      <em>{`${percent(column.low)} to ${percent(column.high)} with 95 % confidence`}</em>
      <em>
        {`${formatCount(column.tokens)} tokens, ${cost}, median ${formatDuration(column.seconds * 1000)}`}
        {column.errors > 0 && `, ${column.errors} errors`}
      </em>
      {comparison && <em>{describeComparison(comparison)}</em>}
    </div>
  );
}

function describeComparison({ difference, low, high, cases }: EvaluationComparison): string {
  const signed = (value: number) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
  if (difference === 0 && low === high) return `No difference in the mean score of ${cases} cases`;
  const start = `${signed(difference)} in the mean score of ${cases} cases`;
  if (typeof low !== "number" || typeof high !== "number") return `${start}; too few for an interval`;
  const verdict = high < 0 ? "worse beyond chance" : low > 0 ? "better beyond chance" : "chance may explain it";
  return `${start} (${signed(low)} to ${signed(high)}): ${verdict}`;
}

interface CaseRow {
  case: string;
  cells: Record<string, EvaluationRow[]>;
}

function Cases({ details }: { details: EvaluationDetails }) {
  const { columns, rows, evaluation } = details;
  const cases = groupCases(rows);
  return (
    <Table<CaseRow>
      size="small"
      rowKey="case"
      dataSource={cases}
      pagination={{ pageSize: 50, hideOnSinglePage: true, showSizeChanger: false }}
      scroll={{ x: 420 + 130 * columns.length }}
      columns={[
        { title: "Case", dataIndex: "case", width: 160 },
        ...columns.map((column) => ({
          title: evaluation.agents.length > 1 ? columnKey(column) : column.model,
          key: columnKey(column),
          width: 130,
          render: (_: unknown, row: CaseRow) => <Cell results={row.cells[columnKey(column)] ?? []} />,
        })),
        { title: "Why it did not pass", key: "reason", ellipsis: true, render: (_, row) => firstReason(row) },
      ]}
      expandable={{ expandedRowRender: (row) => <CaseDetails row={row} /> }}
    />
  );
}

function groupCases(rows: readonly EvaluationRow[]): CaseRow[] {
  const found = new Map<string, CaseRow>();
  for (const row of rows) {
    const entry = found.get(row.case) ?? { case: row.case, cells: {} };
    const key = columnKey(row);
    entry.cells[key] = [...(entry.cells[key] ?? []), row];
    found.set(row.case, entry);
  }
  return [...found.values()];
}

function firstReason(row: CaseRow): string {
  const failed = Object.values(row.cells)
    .flat()
    .filter((result) => result.status !== "passed");
  const [first, ...others] = failed;
  if (!first) return "";
  const more = others.length > 0 ? ` (and ${others.length} more)` : "";
  return `${first.reason ?? ""}${more}`;
}

const COLORS = { passed: "success", failed: "error", error: "warning" } as const;
const LABELS = { passed: "Passed", failed: "Failed", error: "Error" } as const;

function Cell({ results }: { results: readonly EvaluationRow[] }) {
  const [first] = results;
  if (!first) return "–";
  const passed = results.filter((result) => result.status === "passed").length;
  const worst = results.find((result) => result.status !== "passed") ?? first;
  const label = results.length > 1 ? `${passed} of ${results.length}` : LABELS[first.status];
  const score = results.reduce((sum, result) => sum + result.score, 0) / results.length;
  return (
    <span className="evaluation-cell">
      <Tooltip title={worst.reason}>
        <Tag color={COLORS[worst.status]}>{label}</Tag>
      </Tooltip>
      {score > 0 && score < 1 && <span className="number">{score.toFixed(2)}</span>}
      {typeof first.before === "number" && <em>{` was ${first.before.toFixed(2)}`}</em>}
    </span>
  );
}

function CaseDetails({ row }: { row: CaseRow }) {
  return (
    <div className="stack">
      {Object.values(row.cells)
        .flat()
        .map((result) => (
          <div key={`${columnKey(result)} ${result.repeat}`}>
            <strong>{columnKey(result)}</strong>
            {result.reason && <p>{result.reason}</p>}
            {result.calls && <pre className="wrapped">{result.calls.join("\n")}</pre>}
            {result.answer && <pre className="wrapped">{result.answer}</pre>}
          </div>
        ))}
    </div>
  );
}
