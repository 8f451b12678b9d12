// Timeline of a run: one bar for each model call, tool call and wait.

import { Tooltip } from "antd";
import { formatDuration } from "../state/format";
import type { RunFound, RunStep } from "../wire";

export interface Span {
  kind: "model" | "tool" | "approval" | "offline";
  name: string;
  from: number;
  to: number;
  status: "done" | "failed" | "open" | "denied";
  note: string;
}

export interface Timeline {
  from: number;
  to: number;
  spans: Span[];
}

/** Convert the recorded steps of a run to time spans. Spans that have not ended extend to `now`. */
export function buildTimeline({ run, steps }: RunFound, now: number): Timeline {
  const end = run.endedAt ?? now;
  const ended = run.endedAt !== undefined && run.endedAt !== null;
  const spans: Span[] = [];
  const open = new Map<string, Span>();
  let previousAt = run.createdAt;
  let round = 0;
  const startSpan = (key: string, step: RunStep, kind: Span["kind"]) => {
    const span: Span = { kind, name: step.name || kind, from: step.at, to: end, status: "open", note: "" };
    spans.push(span);
    open.set(key, span);
  };
  const endSpan = (key: string, at: number, change: Partial<Span>) => {
    const span = open.get(key);
    if (!span) return;
    open.delete(key);
    Object.assign(span, { to: at, status: "done" }, change);
  };
  for (const step of steps) {
    switch (step.kind) {
      case "reply":
        round += 1;
        spans.push({
          kind: "model",
          name: `Model call ${round}${step.name ? ` · ${step.name}` : ""}`,
          from: previousAt,
          to: step.at,
          status: "done",
          note: step.usage ? `${step.usage.inputTokens} input, ${step.usage.outputTokens} output tokens` : "",
        });
        break;
      case "intent":
        startSpan(`call ${step.callId}`, step, "tool");
        break;
      case "outcome": {
        const failed = step.status !== "ok";
        const note = failed ? (step.error ?? step.status ?? "") : "";
        endSpan(`call ${step.callId}`, step.at, { status: failed ? "failed" : "done", note });
        break;
      }
      case "asked":
        startSpan(`approval ${step.key}`, step, "approval");
        break;
      case "answered":
        endSpan(`approval ${step.key}`, step.at, {
          status: step.status === "deny" ? "denied" : "done",
          note: `${step.status ?? ""}${step.by ? ` by ${step.by}` : ""}${step.reason ? `: ${step.reason}` : ""}`,
        });
        break;
      case "resumed":
        spans.push({
          kind: "offline",
          name: "Gateway offline",
          from: previousAt,
          to: step.at,
          status: "failed",
          note: "resumed after a restart",
        });
        break;
    }
    previousAt = step.at;
  }
  if (!ended && open.size === 0)
    spans.push({
      kind: "model",
      name: `Model call ${round + 1}`,
      from: previousAt,
      to: end,
      status: "open",
      note: "running",
    });
  for (const span of open.values()) span.note ||= ended ? "no outcome recorded" : "running";
  return { from: run.createdAt, to: Math.max(end, run.createdAt + 1, ...spans.map((span) => span.to)), spans };
}

/** Return round times for the axis. */
export function axisTicks(length: number, count = 5): number[] {
  const exact = length / count;
  const power = 10 ** Math.floor(Math.log10(Math.max(exact, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((rounded) => rounded >= exact) ?? power * 10;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, index) => index * step);
}

const KIND_LABELS: Record<Span["kind"], string> = {
  model: "Model",
  tool: "Tool",
  approval: "Waiting for approval",
  offline: "Offline",
};

export function TimelineChart({ timeline }: { timeline: Timeline }) {
  const length = timeline.to - timeline.from;
  const percent = (duration: number) => `${(duration / length) * 100}%`;
  return (
    <figure className="timeline">
      <ul aria-label="Steps of this run">
        {timeline.spans.map((span, index) => {
          const duration = formatDuration(span.to - span.from);
          const kind = KIND_LABELS[span.kind];
          return (
            <li key={index}>
              <span className="name" title={span.name}>
                <i className={`swatch kind-${span.kind}`} aria-hidden /> {span.name}
              </span>
              <span className="track">
                <Tooltip title={`${kind}: ${duration}${span.note ? ` – ${span.note}` : ""}`}>
                  <span
                    className={`bar kind-${span.kind} is-${span.status}`}
                    style={{
                      left: percent(span.from - timeline.from),
                      width: `max(3px, ${percent(span.to - span.from)})`,
                    }}
                    tabIndex={0}
                    role="img"
                    aria-label={`${kind} ${span.name}, ${duration} ${span.note}`}
                  />
                </Tooltip>
              </span>
              <span className="duration">{duration}</span>
            </li>
          );
        })}
      </ul>
      <div className="axis" aria-hidden>
        <span className="track">
          {axisTicks(length).map((at) => (
            <i key={at} style={{ left: percent(at) }}>
              {at === 0 ? "0" : formatDuration(at)}
            </i>
          ))}
        </span>
      </div>
      <figcaption>
        {(["model", "tool", "approval"] as const).map((kind) => (
          <span key={kind}>
            <i className={`swatch kind-${kind}`} aria-hidden /> {KIND_LABELS[kind]}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
