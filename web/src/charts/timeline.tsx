// Timeline of a run: one bar for each model call, tool call and wait.

import { Tooltip } from "antd";
import { formatDuration } from "../state/format";
import type { RunDetails, RunStep } from "../wire";
import { useWidth } from "./width";

export interface Span {
  kind: "model" | "tool" | "approval" | "offline";
  name: string;
  from: number;
  to: number;
  status: "done" | "failed" | "open" | "denied";
  note: string;
  /** Milliseconds until the first token of a model's reply, if they were recorded. */
  firstToken?: number;
}

export interface Timeline {
  from: number;
  to: number;
  spans: Span[];
}

/** Convert the recorded steps of a run to time spans. Spans that have not ended extend to `now`. */
export function buildTimeline({ run, steps }: RunDetails, now: number): Timeline {
  const end = run.endedAt ?? now;
  const ended = run.endedAt !== undefined && run.endedAt !== null;
  const builder = new SpanBuilder(run.createdAt, end);
  for (const step of steps) builder.add(step);
  const spans = builder.finish(ended);
  return { from: run.createdAt, to: Math.max(end, run.createdAt + 1, ...spans.map((span) => span.to)), spans };
}

function isNumber(value: number | null | undefined): value is number {
  return typeof value === "number";
}

class SpanBuilder {
  private spans: Span[] = [];
  private open = new Map<string, Span>();
  private modelCalls = 0;

  private readonly start: number;

  constructor(
    private previousAt: number,
    private readonly end: number,
  ) {
    this.start = previousAt;
  }

  add(step: RunStep): void {
    switch (step.kind) {
      case "reply":
        this.addModelCall(step);
        break;
      case "intent":
        this.openSpan(`call ${step.callId}`, step, "tool");
        break;
      case "outcome": {
        const failed = step.status !== "ok";
        const job = step.jobId ? `delegated as job ${step.jobId}` : "";
        const note = failed ? (step.error ?? step.status ?? "") : job;
        this.closeSpan(`call ${step.callId}`, step.at, failed ? "failed" : "done", note);
        break;
      }
      case "asked":
        this.openSpan(`approval ${step.key}`, step, "approval");
        break;
      case "answered": {
        const note = `${step.status ?? ""}${step.by ? ` by ${step.by}` : ""}${step.reason ? `: ${step.reason}` : ""}`;
        this.closeSpan(`approval ${step.key}`, step.at, step.status === "deny" ? "denied" : "done", note);
        break;
      }
      case "hook":
        this.push("tool", `Hook · ${step.name ?? ""}`, step.at, "done", step.status ?? "");
        break;
      case "summary":
        this.push("model", "Summary of older messages", step.at, "done", "");
        break;
      case "resumed":
        this.push("offline", "Gateway offline", step.at, "failed", "resumed after a restart");
        break;
    }
    this.previousAt = step.at;
  }

  /** Return all spans. While the run is open and nothing else is, the model is being called. */
  finish(ended: boolean): Span[] {
    if (!ended && this.open.size === 0)
      this.push("model", `Model call ${this.modelCalls + 1}`, this.end, "open", "running");
    for (const span of this.open.values()) span.note ||= ended ? "no outcome recorded" : "running";
    return this.spans;
  }

  private addModelCall({ name, usage, cost, firstMs, totalMs, at }: RunStep): void {
    this.modelCalls += 1;
    const label = `Model call ${this.modelCalls}${name ? ` · ${name}` : ""}`;
    const tokens = usage ? `${usage.inputTokens} input, ${usage.outputTokens} output tokens` : "";
    const first = isNumber(firstMs) ? `first token after ${formatDuration(firstMs)}` : "";
    const note = [first, tokens, isNumber(cost) ? `$${cost.toFixed(4)}` : ""].filter(Boolean).join(", ");
    if (isNumber(totalMs)) this.previousAt = Math.max(at - totalMs, this.start);
    const span = this.push("model", label, at, "done", note);
    if (isNumber(firstMs)) span.firstToken = firstMs;
  }

  /** Add a span that starts at the previous step. */
  private push(kind: Span["kind"], name: string, to: number, status: Span["status"], note: string): Span {
    const span: Span = { kind, name, from: this.previousAt, to, status, note };
    this.spans.push(span);
    return span;
  }

  private openSpan(key: string, { name, at }: RunStep, kind: Span["kind"]): void {
    const span: Span = { kind, name: name || kind, from: at, to: this.end, status: "open", note: "" };
    this.spans.push(span);
    this.open.set(key, span);
  }

  private closeSpan(key: string, at: number, status: Span["status"], note: string): void {
    const span = this.open.get(key);
    if (!span) return;
    this.open.delete(key);
    Object.assign(span, { to: at, status, note });
  }
}

/** Return round times for the axis. */
export function axisTicks(length: number, count = 5): number[] {
  const exact = length / count;
  const power = 10 ** Math.floor(Math.log10(Math.max(exact, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((rounded) => rounded >= exact) ?? power * 10;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, index) => index * step);
}

function firstTokenShare({ from, to, firstToken = 0 }: Span): string {
  return `${Math.min(100, (firstToken / Math.max(to - from, 1)) * 100)}%`;
}

const TICK_WIDTH = 64;
const KIND_LABELS: Record<Span["kind"], string> = {
  model: "Model",
  tool: "Tool",
  approval: "Waiting for approval",
  offline: "Offline",
};

export function TimelineChart({ timeline }: { timeline: Timeline }) {
  const length = timeline.to - timeline.from;
  const [axis, width] = useWidth<HTMLSpanElement>();
  const ticks = axisTicks(length, Math.min(5, Math.max(1, Math.floor(width / TICK_WIDTH))));
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
                  >
                    {span.firstToken !== undefined && (
                      <i className="first-token" style={{ width: firstTokenShare(span) }} aria-hidden />
                    )}
                  </span>
                </Tooltip>
              </span>
              <span className="duration">
                {span.firstToken !== undefined && (
                  <small title="Time to the first token">{formatDuration(span.firstToken)} · </small>
                )}
                {duration}
              </span>
            </li>
          );
        })}
      </ul>
      <div className="axis" aria-hidden>
        <span className="track" ref={axis}>
          {ticks.map((at) => (
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
        {timeline.spans.some((span) => span.firstToken !== undefined) && (
          <span>
            <i className="swatch kind-model first-token" aria-hidden /> Until the first token
          </span>
        )}
      </figcaption>
    </figure>
  );
}
