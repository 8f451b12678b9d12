import { expect, it } from "vitest";
import type { RunDetails } from "../wire";
import { labelledColumns, lastDays, roundUp, stackSeries } from "./bar-chart";
import { axisTicks, buildTimeline } from "./timeline";

it("a timeline has spans for model calls, approvals and tool calls", () => {
  const step = (seq: number, kind: string, at: number, more = {}) => ({ seq, kind, key: "k", at, ...more });
  const found = {
    run: { runId: "r", sessionKey: "s", agentId: "a", status: "done", createdAt: 0, endedAt: 100 },
    steps: [
      step(1, "accepted", 0),
      step(2, "reply", 10, { name: "m" }),
      step(3, "hook", 11, { name: "guard", status: "changed arguments" }),
      step(3, "asked", 12, { name: "t", callId: "c" }),
      step(4, "answered", 50, { status: "deny", by: "me" }),
      step(5, "intent", 51, { name: "t", callId: "c" }),
      step(6, "outcome", 60, { callId: "c", status: "error", error: "timeout" }),
      step(7, "reply", 90),
      step(8, "ended", 100),
    ],
  } as unknown as RunDetails;
  const { spans, to } = buildTimeline(found, 1000);
  expect(to).toBe(100);
  expect(spans.map((span) => [span.kind, span.from, span.to, span.status])).toEqual([
    ["model", 0, 10, "done"],
    ["tool", 10, 11, "done"],
    ["approval", 12, 50, "denied"],
    ["tool", 51, 60, "failed"],
    ["model", 60, 90, "done"],
  ]);
  expect(axisTicks(100)).toEqual([0, 20, 40, 60, 80, 100]);
});

it("a model call starts when it was sent, and has the time to its first token", () => {
  const found = {
    run: { runId: "r", sessionKey: "s", agentId: "a", status: "done", createdAt: 1000, endedAt: 5000 },
    steps: [
      { seq: 1, kind: "accepted", key: "", at: 1000 },
      { seq: 2, kind: "reply", key: "1", at: 4500, name: "m", firstMs: 300, totalMs: 1500, cost: 0.0012 },
      { seq: 3, kind: "ended", key: "", at: 5000 },
    ],
  } as unknown as RunDetails;
  const [call] = buildTimeline(found, 9000).spans;
  expect(call).toMatchObject({ from: 3000, to: 4500, firstToken: 300 });
  expect(call?.note).toBe("first token after 300 ms, $0.0012");
});

it("series are stacked with the largest first and the smallest merged", () => {
  const days = lastDays(2, Date.UTC(2026, 0, 2));
  expect(days).toEqual(["2026-01-01", "2026-01-02"]);
  const names = ["a", "b", "c", "d", "e", "f", "g"];
  const points = names.map((name, index) => ({ name, day: "2026-01-01", value: 7 - index }));
  const series = stackSeries(points, days);
  expect(series.names).toEqual(["a", "b", "c", "d", "e", "Other"]);
  expect(series.values).toEqual([
    [7, 6, 5, 4, 3, 3],
    [0, 0, 0, 0, 0, 0],
  ]);
  expect([0, 3, 21, 130].map(roundUp)).toEqual([1, 4, 30, 200]);
});

it("labels of a bar chart never collide, and the last day has one", () => {
  for (const [count, width] of [
    [7, 600],
    [14, 280],
    [30, 280],
    [30, 900],
  ] as const) {
    const labelled = labelledColumns(count, width);
    const places = labelled.flatMap((shown, index) => (shown ? [(index * width) / count] : []));
    expect(labelled.at(-1)).toBe(true);
    for (const [index, place] of places.entries())
      if (index > 0) expect(place - (places[index - 1] ?? 0)).toBeGreaterThanOrEqual(54);
  }
});
