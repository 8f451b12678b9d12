// Usage: tokens, cost and tool calls per day, by agent, model and tool.

import { BarChartOutlined } from "@ant-design/icons";
import { Segmented, Space } from "antd";
import { type ReactNode, useMemo, useState } from "react";
import { BarChart, lastDays, stackSeries } from "../charts/bar-chart";
import { formatCost, formatCount, formatDuration, formatIdentifier, formatRelativeTime } from "../state/format";
import { useQuery } from "../state/hooks";
import type { Methods } from "../wire";
import { ACTIVITY_TABS, EmptyState, QueryResult, View } from "./view";

const MICROCENTS_PER_DOLLAR = 100_000_000;

type UsageRow = Methods["usage.summary"]["result"]["rows"][number];
type ToolRow = Methods["usage.tools"]["result"]["rows"][number];
type Budget = NonNullable<Methods["limits.get"]["result"]["budgets"]>[number];
type Metric = "tokens" | "cost" | "turns";
type Grouping = "agent" | "model";

const METRICS: Record<Metric, { label: string; value: (row: UsageRow) => number }> = {
  tokens: { label: "Tokens", value: (row) => row.inputTokens + row.outputTokens },
  cost: { label: "Cost", value: (row) => row.costMicrocents / MICROCENTS_PER_DOLLAR },
  turns: { label: "Runs", value: (row) => row.turns },
};

export default function Usage() {
  const [period, setPeriod] = useState(14);
  const [grouping, setGrouping] = useState<Grouping>("agent");
  const days = useMemo(() => lastDays(period), [period]);
  const from = days[0] ?? "";
  const usage = useQuery("usage.summary", { from, groupBy: grouping, byDay: true });
  const tools = useQuery("usage.tools", { from });
  const budgets = useQuery("limits.get", {}).data?.budgets ?? [];
  return (
    <View
      title="Usage"
      description="Usage of your agents, day by day."
      tabs={ACTIVITY_TABS}
      controls={
        <Segmented
          aria-label="Period"
          value={period}
          onChange={setPeriod}
          options={[7, 14, 30].map((value) => ({ value, label: `${value} days` }))}
        />
      }
    >
      <QueryResult query={usage} what="usage">
        {({ rows }) =>
          rows.length === 0 ? (
            <EmptyState icon={<BarChartOutlined aria-hidden />} title="No usage yet">
              Each run adds its tokens, its tool calls and, if the price is known, its cost.
            </EmptyState>
          ) : (
            <>
              <Totals rows={rows} />
              <UsagePanel rows={rows} days={days} grouping={grouping} onGrouping={setGrouping} />
            </>
          )
        }
      </QueryResult>
      {budgets.length > 0 && <Budgets budgets={budgets} />}
      {tools.data && tools.data.rows.length > 0 && (
        <Panel title="Calls by tool">
          <BarChart
            label="Calls by tool"
            format={formatCount}
            series={stackSeries(
              tools.data.rows.map((row) => ({ name: row.name, day: row.day, value: row.calls })),
              days,
            )}
          />
          <ToolTotals rows={tools.data.rows} />
        </Panel>
      )}
    </View>
  );
}

function Totals({ rows }: { rows: readonly UsageRow[] }) {
  const total = (value: (row: UsageRow) => number) => rows.reduce((sum, row) => sum + value(row), 0);
  return (
    <div className="stats">
      <Stat name="Runs" value={formatCount(total((row) => row.turns))} />
      <Stat
        name="Input tokens"
        value={formatCount(total((row) => row.inputTokens))}
        note={`${formatCount(total((row) => row.cachedTokens))} cached`}
      />
      <Stat name="Output tokens" value={formatCount(total((row) => row.outputTokens))} />
      <Stat name="Cost" value={formatCost(total(METRICS.cost.value))} note="where prices are known" />
    </div>
  );
}

interface UsagePanelProps {
  rows: readonly UsageRow[];
  days: string[];
  grouping: Grouping;
  onGrouping: (grouping: Grouping) => void;
}

function UsagePanel({ rows, days, grouping, onGrouping }: UsagePanelProps) {
  const [metric, setMetric] = useState<Metric>("tokens");
  const { label, value } = METRICS[metric];
  const title = `${label} by ${grouping}`;
  const points = rows.map((row) => ({ name: row.name || "unknown", day: row.day ?? "", value: value(row) }));
  return (
    <Panel
      title={title}
      controls={
        <Space wrap>
          <Segmented<Metric>
            size="small"
            aria-label="Metric"
            value={metric}
            onChange={setMetric}
            options={(Object.keys(METRICS) as Metric[]).map((key) => ({ value: key, label: METRICS[key].label }))}
          />
          <Segmented<Grouping>
            size="small"
            aria-label="Group by"
            value={grouping}
            onChange={onGrouping}
            options={[
              { value: "agent", label: "Agent" },
              { value: "model", label: "Model" },
            ]}
          />
        </Space>
      }
    >
      <BarChart
        label={title}
        format={metric === "cost" ? formatCost : formatCount}
        series={stackSeries(points, days)}
      />
    </Panel>
  );
}

export function Budgets({ budgets }: { budgets: readonly Budget[] }) {
  return (
    <Panel title="Budgets">
      <div className="scroll-x" role="region" aria-label="Budgets" tabIndex={0}>
        <table className="totals">
          <thead>
            <tr>
              <th>Budget</th>
              <th className="number">Limit</th>
              <th className="number">Used</th>
              <th className="number">Left</th>
              <th className="number">Starts again</th>
            </tr>
          </thead>
          <tbody>
            {budgets.map(({ scope, subject, measure, limit, used, reserved, per, resetsAt }) => (
              <tr key={`${scope} ${subject} ${measure} ${per}`}>
                <td>
                  {formatIdentifier(scope)} {subject && <code>{subject}</code>} {per && `per ${per}`}
                </td>
                <td className="number">{formatAmount(measure, limit)}</td>
                <td className="number">{formatAmount(measure, used)}</td>
                <td className="number">{used >= limit ? "Used up" : formatAmount(measure, limit - used - reserved)}</td>
                <td className="number">{resetsAt ? formatRelativeTime(resetsAt, Date.now()) : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  );
}

function formatAmount(measure: string, amount: number): string {
  if (measure === "dollars") return formatCost(amount);
  if (measure === "seconds") return formatDuration(amount * 1000);
  return `${formatCount(amount)} ${measure.replaceAll("_", " ")}`;
}

function ToolTotals({ rows }: { rows: readonly ToolRow[] }) {
  const totals = new Map<string, { calls: number; failed: number; durationMs: number }>();
  for (const { name, calls, failed, durationMs } of rows) {
    const total = totals.get(name) ?? { calls: 0, failed: 0, durationMs: 0 };
    totals.set(name, {
      calls: total.calls + calls,
      failed: total.failed + failed,
      durationMs: total.durationMs + durationMs,
    });
  }
  return (
    <table className="totals">
      <thead>
        <tr>
          <th>Tool</th>
          <th className="number">Calls</th>
          <th className="number">Unsuccessful</th>
          <th className="number">Average duration</th>
        </tr>
      </thead>
      <tbody>
        {[...totals]
          .sort((a, b) => b[1].calls - a[1].calls)
          .map(([name, total]) => (
            <tr key={name}>
              <td>
                <code>{name}</code>
              </td>
              <td className="number">{total.calls}</td>
              <td className="number">{total.failed || "–"}</td>
              <td className="number">{formatDuration(total.durationMs / total.calls)}</td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}

export function Stat({ name, value, note }: { name: string; value: string; note?: string }) {
  return (
    <div className="stat">
      <span>{name}</span>
      <strong>{value}</strong>
      {note && <em>{note}</em>}
    </div>
  );
}

function Panel({ title, controls, children }: { title: string; controls?: ReactNode; children: ReactNode }) {
  return (
    <section className="panel">
      <header>
        <h2>{title}</h2>
        {controls}
      </header>
      {children}
    </section>
  );
}
