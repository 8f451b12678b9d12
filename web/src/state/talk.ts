// One session as this page knows it, and how every frame changes it. Pure: the same frames give the same talk.

import type { EventFrame } from "../net/connection";
import type {
  ApprovalShape,
  Events,
  History,
  MessageShape,
  PlanStepShape,
  RunOutcome,
  RunPosition,
  SessionShape,
  Subscribed,
  UsageShape,
} from "../wire";
import type { Part } from "./kinds";
import { added, type Lines, NOTHING } from "./lines";

export type CallState = "called" | "asking" | "running" | "ok" | "error" | "unknown";

/** A call of a tool, as far as it is known. */
export interface Call {
  state: CallState;
  progress: Lines;
  result?: unknown;
  error?: string;
  durationMs?: number;
  approval?: ApprovalShape;
  decision?: string;
  by?: string;
}

export type RunEnd = "running" | "queued" | "done" | "failed" | "cancelled";

/** A turn: what it says right now and is not yet a kept message, and how it stands. */
export interface Run {
  runId: string;
  seq: number;
  end: RunEnd;
  agentId: string;
  model: string;
  notice: string;
  text: string;
  thinking: string;
  withdrawn: number;
  calls: Record<string, Call>;
  plan?: readonly PlanStepShape[];
  usage?: UsageShape;
  error?: string;
  errorKind?: string;
}

/** Something this page has said and not yet seen in the session. */
export interface Outgoing {
  key: string;
  parts: Part[];
  agentId?: string;
  model?: string;
  at: number;
  runId?: string;
  state: "sending" | "queued" | "failed";
  error?: string;
}

export interface Talk {
  key: string;
  session?: SessionShape;
  messages: MessageShape[];
  runs: Record<string, Run>;
  outgoing: Outgoing[];
  loaded: boolean;
  older: boolean;
  missing: boolean;
}

export const PAGE = 200;

export function emptyTalk(key: string): Talk {
  return { key, messages: [], runs: {}, outgoing: [], loaded: false, older: false, missing: false };
}

export function freshRun(runId: string): Run {
  return {
    runId,
    seq: 0,
    end: "running",
    agentId: "",
    model: "",
    notice: "",
    text: "",
    thinking: "",
    withdrawn: 0,
    calls: {},
  };
}

export const isOpen = (run: Run): boolean => run.end === "running" || run.end === "queued";

/** The runs to name when coming back, each with the last number that was heard. */
export function positions(talk: Talk): Record<string, number> {
  const open = Object.values(talk.runs).filter(isOpen);
  return Object.fromEntries(open.map((run) => [run.runId, run.seq]));
}

/** What the gateway says a session is: merged into what is known. */
export function subscribed(talk: Talk, answer: Subscribed): Talk {
  const runs = { ...talk.runs };
  const named = new Set(answer.runs.map((position) => position.runId));
  for (const run of Object.values(runs)) if (isOpen(run) && !named.has(run.runId)) delete runs[run.runId];
  for (const position of answer.runs) {
    if (position.mode === "replay") {
      runs[position.runId] ??= freshRun(position.runId);
      continue;
    }
    runs[position.runId] = snapshot(position);
  }
  // Of a run that is replayed, the frames that follow say how it ended.
  for (const outcome of answer.outcomes ?? [])
    if (!named.has(outcome.runId)) runs[outcome.runId] = ended(runs[outcome.runId], outcome);
  let next: Talk = { ...talk, session: answer.session, loaded: true, missing: false };
  const known = new Set(talk.messages.map((message) => message.id));
  const overlaps =
    talk.messages.length > 0 && (answer.messages.length < PAGE || answer.messages.some((m) => known.has(m.id)));
  if (overlaps) next.messages = [...talk.messages, ...answer.messages.filter((message) => !known.has(message.id))];
  else next = { ...next, messages: [...answer.messages], older: (answer.messages[0]?.seq ?? 1) > 1 };
  const waiting = answer.waiting ?? [];
  next.runs = runs;
  for (const message of waiting)
    if (message.runId) runs[message.runId] = { ...(runs[message.runId] ?? freshRun(message.runId)), end: "queued" };
  return settle({ ...next, outgoing: withWaiting(next.outgoing, waiting) });
}

/** Messages that wait for their turn are shown as this page's own are. */
function withWaiting(outgoing: Outgoing[], waiting: readonly MessageShape[]): Outgoing[] {
  const known = new Set(outgoing.map((each) => each.runId));
  const others = waiting.filter((message) => !known.has(message.runId));
  return [
    ...outgoing,
    ...others.map(
      (message): Outgoing => ({
        key: message.id,
        parts: [...message.parts],
        at: message.createdAt,
        runId: message.runId,
        state: "queued",
      }),
    ),
  ];
}

/** A turn without an answer: what it had said stays. */
function ended(run: Run | undefined, { runId, status, error, parts = [] }: RunOutcome): Run {
  const before = run ?? freshRun(runId);
  return {
    ...before,
    end: status,
    error: error ?? before.error,
    text: textIn(parts, "text"),
    thinking: textIn(parts, "thinking"),
  };
}

function snapshot({ runId, seq, parts, pendingApproval, progress = {}, plan = [] }: RunPosition): Run {
  const said = parts ?? [];
  const run = { ...freshRun(runId), seq, text: textIn(said, "text"), thinking: textIn(said, "thinking") };
  if (seq === 0 && said.length === 0) run.end = "queued";
  if (plan.length) run.plan = plan;
  for (const part of said) {
    if (part.type !== "tool_result") continue;
    const { callId, status, result, error, durationMs } = part;
    run.calls[callId] = {
      state: status,
      progress: NOTHING,
      result,
      error: error ?? undefined,
      durationMs: durationMs ?? undefined,
    };
  }
  for (const [callId, lines] of Object.entries(progress))
    run.calls[callId] = { state: "running", progress: lines.reduce(added, NOTHING) };
  if (pendingApproval)
    run.calls[pendingApproval.toolCallId] = { state: "asking", progress: NOTHING, approval: pendingApproval };
  return run;
}

function textIn(parts: readonly Part[], type: "text" | "thinking"): string {
  return parts.map((part) => (part.type === type ? part.text : "")).join("");
}

/** Older messages, read page by page. */
export function withOlder(talk: Talk, { messages, hasMore, outcomes = [] }: History): Talk {
  const known = new Set(talk.messages.map((message) => message.id));
  const runs = { ...talk.runs };
  for (const outcome of outcomes) runs[outcome.runId] ??= ended(undefined, outcome);
  return {
    ...talk,
    runs,
    messages: [...messages.filter((message) => !known.has(message.id)), ...talk.messages],
    older: hasMore,
  };
}

type RunFrame = Extract<EventFrame, { data: { runId: string } }>;

export function isRunFrame(frame: EventFrame): frame is RunFrame {
  return "runId" in frame.data;
}

/** Whether a frame cannot follow what was heard: something was missed, and must be asked for. */
export function isGap(talk: Talk, frame: RunFrame): boolean {
  const seq = frame.data.seq ?? 0;
  const heard = talk.runs[frame.data.runId]?.seq ?? 0;
  return seq > heard + 1 && frame.event !== "chat.reset";
}

/** The talk after a frame of one of its runs; what was heard before changes nothing. */
export function heard(talk: Talk, frame: RunFrame): Talk {
  const { runId, seq = 0 } = frame.data;
  const before = talk.runs[runId] ?? freshRun(runId);
  if (seq <= before.seq) return talk;
  const run = { ...apply(before, frame), seq };
  const next: Talk = { ...talk, runs: { ...talk.runs, [runId]: run } };
  return frame.event === "chat.message" ? withMessage(next, frame.data.message) : next;
}

function apply(run: Run, frame: RunFrame): Run {
  switch (frame.event) {
    case "chat.started":
      return {
        ...run,
        end: "running",
        agentId: frame.data.agentId,
        model: frame.data.model,
        notice: frame.data.notice ?? "",
      };
    case "chat.delta":
      return { ...run, end: "running", text: run.text + frame.data.text };
    case "chat.reasoning":
      return { ...run, end: "running", thinking: run.thinking + frame.data.text };
    case "chat.reset":
      return { ...run, text: "", thinking: "", withdrawn: run.withdrawn + 1 };
    case "chat.message":
      return frame.data.message.role === "assistant" ? { ...run, text: "", thinking: "" } : { ...run, end: "running" };
    case "plan.updated":
      return { ...run, plan: frame.data.steps };
    case "chat.final":
      return frame.data.cancelled
        ? { ...run, end: "cancelled" }
        : { ...run, text: "", thinking: "", end: "done", usage: frame.data.usage };
    case "chat.error":
      return { ...run, end: "failed", error: frame.data.message, errorKind: frame.data.kind };
    default:
      return { ...run, calls: { ...run.calls, ...called(run.calls, frame) } };
  }
}

function called(calls: Record<string, Call>, frame: RunFrame): Record<string, Call> {
  const update = (id: string, change: Partial<Call>): Record<string, Call> => ({
    [id]: { ...(calls[id] ?? { state: "called", progress: NOTHING }), ...change },
  });
  switch (frame.event) {
    case "tool.call":
      return update(frame.data.toolCallId, { state: "running" });
    case "tool.progress":
      return update(frame.data.toolCallId, {
        progress: added(calls[frame.data.toolCallId]?.progress ?? NOTHING, frame.data.message),
      });
    case "tool.result": {
      const { toolCallId, status, result, error, durationMs } = frame.data;
      return update(toolCallId, { state: status, result, error: error ?? undefined, durationMs, approval: undefined });
    }
    case "exec.approval_request":
      return update(frame.data.toolCallId, { state: "asking", approval: asked(frame.data) });
    case "approval.resolved": {
      const { approvalId, decision, by } = frame.data;
      const found = Object.entries(calls).find(([, call]) => call.approval?.approvalId === approvalId);
      return found ? update(found[0], { state: "running", approval: undefined, decision, by }) : {};
    }
    default:
      return {};
  }
}

function asked(data: Events["exec.approval_request"]): ApprovalShape {
  return { ...data, sessionKey: data.sessionKey ?? "" };
}

function withMessage(talk: Talk, message: MessageShape): Talk {
  if (talk.messages.some((each) => each.id === message.id)) return settle(talk);
  return settle({ ...talk, messages: [...talk.messages, message] });
}

/** What has arrived in the session is not on its way any more. */
function settle(talk: Talk): Talk {
  const arrived = new Set(talk.messages.filter((message) => message.role === "user").map((message) => message.runId));
  const outgoing = talk.outgoing.filter((each) => each.runId === undefined || !arrived.has(each.runId));
  return outgoing.length === talk.outgoing.length ? talk : { ...talk, outgoing };
}

export function said(talk: Talk, outgoing: Outgoing): Talk {
  return { ...talk, outgoing: [...talk.outgoing.filter((each) => each.key !== outgoing.key), outgoing] };
}

/** The gateway has taken a message in; it may have come back already as part of the session. */
export function accepted(talk: Talk, key: string, runId: string, queued: boolean): Talk {
  const outgoing = talk.outgoing.map((each) =>
    each.key === key ? { ...each, runId, state: queued ? ("queued" as const) : ("sending" as const) } : each,
  );
  return settle({ ...talk, outgoing });
}

export function unsent(talk: Talk, key: string, error: string): Talk {
  return {
    ...talk,
    outgoing: talk.outgoing.map((each) => (each.key === key ? { ...each, state: "failed", error } : each)),
  };
}

export function withdrawn(talk: Talk, key: string): Talk {
  return { ...talk, outgoing: talk.outgoing.filter((each) => each.key !== key) };
}
