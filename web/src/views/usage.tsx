// What was spent: tokens, cost and calls over time, by agent, by model, by tool.

import { BarChartOutlined } from "@ant-design/icons";
import { Segmented, Space } from "antd";
import { type ReactNode, useMemo, useState } from "react";
import { Bars } from "../charts/bars";
import { lastDays, stacked } from "../charts/series";
import { useAsked } from "../state/use";
import { costOf, countOf, spanOf } from "../state/words";
import { Frame, Nothing, Shown } from "./frame";

const MICROCENTS = 100_000_000;
type What = "tokens" | "cost" | "turns";

export default function Usage() {
  const [span, setSpan] = useState(14);
  const [by, setBy] = useState<"agent" | "model">("agent");
  const [what, setWhat] = useState<What>("tokens");
  const days = useMemo(() => lastDays(span), [span]);
  const from = days[0] ?? "";
  const usage = useAsked("usage.summary", { from, groupBy: by, byDay: true });
  const tools = useAsked("usage.tools", { from });
  const format = what === "cost" ? costOf : countOf;
  return (
    <Frame
      title="Usage"
      about="What your agents used, day by day."
      extra={
        <Segmented
          aria-label="How far back"
          value={span}
          onChange={setSpan}
          options={[
            { value: 7, label: "7 days" },
            { value: 14, label: "14 days" },
            { value: 30, label: "30 days" },
          ]}
        />
      }
    >
      <Shown asked={usage}>
        {({ rows }) => {
          if (rows.length === 0)
            return (
              <Nothing icon={<BarChartOutlined aria-hidden />} title="Nothing was used yet">
                Every turn adds to this: its tokens, what they cost where that is known, and the tools it called.
              </Nothing>
            );
          const sum = (read: (row: (typeof rows)[number]) => number) =>
            rows.reduce((total, row) => total + read(row), 0);
          const value = (row: (typeof rows)[number]) =>
            what === "tokens"
              ? row.inputTokens + row.outputTokens
              : what === "turns"
                ? row.turns
                : row.costMicrocents / MICROCENTS;
          return (
            <>
              <div className="figures">
                <Figure name="Turns" value={countOf(sum((row) => row.turns))} />
                <Figure
                  name="Tokens in"
                  value={countOf(sum((row) => row.inputTokens))}
                  more={`${countOf(sum((row) => row.cachedTokens))} cached`}
                />
                <Figure name="Tokens out" value={countOf(sum((row) => row.outputTokens))} />
                <Figure
                  name="Cost"
                  value={costOf(sum((row) => row.costMicrocents) / MICROCENTS)}
                  more="where prices are known"
                />
              </div>
              <Panel
                title={`${{ tokens: "Tokens", cost: "Cost", turns: "Turns" }[what]} by ${by}`}
                extra={
                  <Space wrap>
                    <Segmented<What>
                      size="small"
                      aria-label="What"
                      value={what}
                      onChange={setWhat}
                      options={[
                        { value: "tokens", label: "Tokens" },
                        { value: "cost", label: "Cost" },
                        { value: "turns", label: "Turns" },
                      ]}
                    />
                    <Segmented<"agent" | "model">
                      size="small"
                      aria-label="By"
                      value={by}
                      onChange={setBy}
                      options={[
                        { value: "agent", label: "Agent" },
                        { value: "model", label: "Model" },
                      ]}
                    />
                  </Space>
                }
              >
                <Bars
                  label={`${what} by ${by}`}
                  format={format}
                  stacks={stacked(
                    rows.map((row) => ({ name: row.name || "unnamed", day: row.day ?? "", value: value(row) })),
                    days,
                  )}
                />
              </Panel>
            </>
          );
        }}
      </Shown>
      {tools.answer && tools.answer.rows.length > 0 && (
        <Panel title="Calls by tool">
          <Bars
            label="Calls by tool"
            format={countOf}
            stacks={stacked(
              tools.answer.rows.map((row) => ({ name: row.name, day: row.day, value: row.calls })),
              days,
            )}
          />
          <ToolSums rows={tools.answer.rows} />
        </Panel>
      )}
    </Frame>
  );
}

function ToolSums({ rows }: { rows: { name: string; calls: number; failed: number; durationMs: number }[] }) {
  const sums = new Map<string, { calls: number; failed: number; durationMs: number }>();
  for (const row of rows) {
    const sum = sums.get(row.name) ?? { calls: 0, failed: 0, durationMs: 0 };
    sums.set(row.name, {
      calls: sum.calls + row.calls,
      failed: sum.failed + row.failed,
      durationMs: sum.durationMs + row.durationMs,
    });
  }
  return (
    <table className="sums">
      <thead>
        <tr>
          <th>Tool</th>
          <th className="number">Calls</th>
          <th className="number">Not done</th>
          <th className="number">On average</th>
        </tr>
      </thead>
      <tbody>
        {[...sums]
          .sort((a, b) => b[1].calls - a[1].calls)
          .map(([name, sum]) => (
            <tr key={name}>
              <td>
                <code>{name}</code>
              </td>
              <td className="number">{sum.calls}</td>
              <td className="number">{sum.failed || "–"}</td>
              <td className="number">{spanOf(sum.durationMs / sum.calls)}</td>
            </tr>
          ))}
      </tbody>
    </table>
  );
}

function Figure({ name, value, more }: { name: string; value: string; more?: string }) {
  return (
    <div className="figure">
      <span>{name}</span>
      <strong>{value}</strong>
      {more && <em>{more}</em>}
    </div>
  );
}

function Panel({ title, extra, children }: { title: string; extra?: ReactNode; children: ReactNode }) {
  return (
    <section className="panel">
      <header>
        <h2>{title}</h2>
        {extra}
      </header>
      {children}
    </section>
  );
}
