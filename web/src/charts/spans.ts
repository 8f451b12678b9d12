// From the steps of a turn to spans of time: rounds of the model, calls of tools, waits for a person.

import type { RunFound, RunStep } from "../wire";

export interface Span {
  kind: "model" | "call" | "wait" | "away";
  name: string;
  from: number;
  to: number;
  state: "done" | "failed" | "open" | "refused";
  words: string;
}

export interface Timeline {
  from: number;
  to: number;
  spans: Span[];
}

/** `now` ends what has not ended yet. */
export function timelineOf({ run, steps }: RunFound, now: number): Timeline {
  const end = run.endedAt ?? now;
  const spans: Span[] = [];
  let since = run.createdAt;
  let round = 0;
  const open = new Map<string, { step: RunStep; span: Span }>();
  const begin = (key: string, step: RunStep, kind: Span["kind"], words: string) => {
    const span: Span = { kind, name: step.name || kind, from: step.at, to: end, state: "open", words };
    spans.push(span);
    open.set(key, { step, span });
  };
  const finish = (key: string, at: number, change: Partial<Span>) => {
    const found = open.get(key);
    if (!found) return;
    open.delete(key);
    Object.assign(found.span, { to: at, state: "done" }, change);
  };
  for (const step of steps) {
    if (step.kind === "reply") {
      round += 1;
      const words = step.usage ? `${step.usage.inputTokens} tokens in, ${step.usage.outputTokens} out` : "";
      spans.push({
        kind: "model",
        name: `round ${round}${step.name ? ` · ${step.name}` : ""}`,
        from: since,
        to: step.at,
        state: "done",
        words,
      });
    } else if (step.kind === "intent") begin(`call ${step.callId}`, step, "call", "");
    else if (step.kind === "outcome") {
      const failed = step.status !== "ok";
      finish(`call ${step.callId}`, step.at, {
        state: failed ? "failed" : "done",
        words: failed ? (step.error ?? step.status ?? "") : "",
      });
    } else if (step.kind === "asked") begin(`ask ${step.key}`, step, "wait", "");
    else if (step.kind === "answered")
      finish(`ask ${step.key}`, step.at, {
        state: step.status === "deny" ? "refused" : "done",
        words: `${step.status ?? ""}${step.by ? ` by ${step.by}` : ""}${step.reason ? `: ${step.reason}` : ""}`,
      });
    else if (step.kind === "resumed") {
      spans.push({
        kind: "away",
        name: "gateway away",
        from: since,
        to: step.at,
        state: "failed",
        words: "the turn went on after a restart",
      });
    }
    since = step.at;
  }
  const over = run.endedAt !== undefined && run.endedAt !== null;
  if (!over && open.size === 0)
    spans.push({ kind: "model", name: `round ${round + 1}`, from: since, to: end, state: "open", words: "under way" });
  for (const { span } of open.values()) span.words ||= over ? "no outcome" : "under way";
  return { from: run.createdAt, to: Math.max(end, run.createdAt + 1, ...spans.map((span) => span.to)), spans };
}

/** Round times for the scale below a picture. */
export function ticks(length: number, wanted = 5): number[] {
  const rough = length / wanted;
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? power * 10;
  return Array.from({ length: Math.floor(length / step) + 1 }, (_, place) => place * step);
}
