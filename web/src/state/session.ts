// State of the open session, and how responses and event frames change it. Pure functions: the same frames always
// produce the same state.

import type { EventFrame } from "../net/connection";
import type {
  ApprovalShape,
  ChatHistoryPage,
  Events,
  MessageShape,
  PlanStepShape,
  RunOutcome,
  RunPosition,
  SessionShape,
  Subscribed,
  UsageShape,
} from "../wire";
import { appendLine, EMPTY_OUTPUT, type OutputBuffer } from "./tool-output";

export type MessagePart = MessageShape["parts"][number];
export type ApprovalDecision = ApprovalShape["options"][number];
export type ToolCallStatus = "called" | "needs-approval" | "running" | "ok" | "error" | "unknown";

export interface ToolCallState {
  status: ToolCallStatus;
  progress: OutputBuffer;
  result?: unknown;
  error?: string;
  durationMs?: number;
  approval?: ApprovalShape;
  decision?: string;
  by?: string;
}

export type RunStatus = "running" | "queued" | "done" | "failed" | "cancelled";

/** A run: its status, and the output that is not yet part of a stored message. */
export interface RunState {
  runId: string;
  /** Number of the last event that was applied. */
  seq: number;
  status: RunStatus;
  agentId: string;
  model: string;
  notice: string;
  text: string;
  reasoning: string;
  calls: Record<string, ToolCallState>;
  plan?: readonly PlanStepShape[];
  usage?: UsageShape;
  error?: string;
  errorKind?: string;
}

/** A message that was sent from this page or is queued, and is not yet part of the session. */
export interface PendingMessage {
  /** Idempotency key of the request. */
  key: string;
  parts: MessagePart[];
  agentId?: string;
  model?: string;
  effort?: string;
  at: number;
  /** It enters the running turn after the current tool calls, instead of waiting for its end. */
  steer?: boolean;
  runId?: string;
  state: "sending" | "queued" | "failed";
  error?: string;
}

export interface SessionState {
  key: string;
  session?: SessionShape;
  messages: MessageShape[];
  runs: Record<string, RunState>;
  pending: PendingMessage[];
  loaded: boolean;
  /** The gateway has older messages than the loaded ones. */
  hasOlder: boolean;
  deleted: boolean;
}

export const PAGE_SIZE = 200;

export function emptySession(key: string): SessionState {
  return { key, messages: [], runs: {}, pending: [], loaded: false, hasOlder: false, deleted: false };
}

export function newRun(runId: string): RunState {
  return {
    runId,
    seq: 0,
    status: "running",
    agentId: "",
    model: "",
    notice: "",
    text: "",
    reasoning: "",
    calls: {},
  };
}

export const isOpenRun = (run: RunState): boolean => run.status === "running" || run.status === "queued";

/** Return the last applied event of each open run, to resume the subscription from there. */
export function runPositions(state: SessionState): Record<string, number> {
  const open = Object.values(state.runs).filter(isOpenRun);
  return Object.fromEntries(open.map((run) => [run.runId, run.seq]));
}

/** Merge the gateway's response to a subscription. */
export function applySubscription(state: SessionState, response: Subscribed): SessionState {
  const runs = mergeRuns(state.runs, response);
  const queued = response.waiting ?? [];
  for (const message of queued)
    if (message.runId) runs[message.runId] = { ...(runs[message.runId] ?? newRun(message.runId)), status: "queued" };
  const merged: SessionState = {
    ...state,
    ...mergeMessages(state, response.messages),
    session: response.session,
    runs,
    loaded: true,
    deleted: false,
    pending: addQueuedMessages(state.pending, queued),
  };
  return removeDelivered(merged);
}

function mergeRuns(known: Record<string, RunState>, response: Subscribed): Record<string, RunState> {
  const runs = { ...known };
  const active = new Set(response.runs.map((position) => position.runId));
  for (const run of Object.values(runs)) if (isOpenRun(run) && !active.has(run.runId)) delete runs[run.runId];
  for (const position of response.runs) {
    if (position.mode === "replay") runs[position.runId] ??= newRun(position.runId);
    else runs[position.runId] = runFromSnapshot(position);
  }
  // The outcome of a replayed run is part of the frames that follow.
  for (const outcome of response.outcomes ?? [])
    if (!active.has(outcome.runId)) runs[outcome.runId] = endRun(runs[outcome.runId], outcome);
  return runs;
}

/** Append new messages; if there may be a gap between the known and the new ones, replace the known ones. */
function mergeMessages(
  state: SessionState,
  messages: readonly MessageShape[],
): Pick<SessionState, "messages" | "hasOlder"> {
  const known = new Set(state.messages.map((message) => message.id));
  const contiguous =
    state.messages.length > 0 && (messages.length < PAGE_SIZE || messages.some((message) => known.has(message.id)));
  if (!contiguous) return { messages: [...messages], hasOlder: (messages[0]?.seq ?? 1) > 1 };
  const added = messages.filter((message) => !known.has(message.id));
  return { messages: [...state.messages, ...added], hasOlder: state.hasOlder };
}

/** Add messages that other clients have queued. */
function addQueuedMessages(pending: PendingMessage[], queued: readonly MessageShape[]): PendingMessage[] {
  const known = new Set(pending.map((message) => message.runId));
  const added = queued
    .filter((message) => !known.has(message.runId))
    .map(
      (message): PendingMessage => ({
        key: message.id,
        parts: [...message.parts],
        at: message.createdAt,
        runId: message.runId,
        state: "queued",
      }),
    );
  return [...pending, ...added];
}

/** Apply the outcome of a run that failed or was cancelled; its partial output stays visible. */
function endRun(run: RunState | undefined, { runId, status, error, parts = [] }: RunOutcome): RunState {
  const known = run ?? newRun(runId);
  return {
    ...known,
    status,
    error: error ?? known.error,
    text: joinText(parts, "text"),
    reasoning: joinText(parts, "thinking"),
  };
}

function runFromSnapshot(position: RunPosition): RunState {
  const { runId, seq, parts, pendingApprovals = [], progress = {}, plan = [] } = position;
  const output = parts ?? [];
  const run = { ...newRun(runId), seq, text: joinText(output, "text"), reasoning: joinText(output, "thinking") };
  if (seq === 0 && output.length === 0) run.status = "queued";
  if (plan.length) run.plan = plan;
  for (const part of output) {
    if (part.type !== "tool_result") continue;
    const { callId, status, result, error, durationMs } = part;
    run.calls[callId] = {
      status,
      progress: EMPTY_OUTPUT,
      result,
      error: error ?? undefined,
      durationMs: durationMs ?? undefined,
    };
  }
  for (const [callId, lines] of Object.entries(progress))
    run.calls[callId] = { status: "running", progress: lines.reduce(appendLine, EMPTY_OUTPUT) };
  for (const approval of pendingApprovals)
    run.calls[approval.toolCallId] = { status: "needs-approval", progress: EMPTY_OUTPUT, approval };
  return run;
}

function joinText(parts: readonly MessagePart[], type: "text" | "thinking"): string {
  return parts.map((part) => (part.type === type ? part.text : "")).join("");
}

/** Prepend a page of older messages. */
export function prependHistory(
  state: SessionState,
  { messages, hasMore, outcomes = [] }: ChatHistoryPage,
): SessionState {
  const known = new Set(state.messages.map((message) => message.id));
  const runs = { ...state.runs };
  for (const outcome of outcomes) runs[outcome.runId] ??= endRun(undefined, outcome);
  return {
    ...state,
    runs,
    messages: [...messages.filter((message) => !known.has(message.id)), ...state.messages],
    hasOlder: hasMore,
  };
}

export type RunFrame = Extract<EventFrame, { data: { runId: string } }>;

export function isRunFrame(frame: EventFrame): frame is RunFrame {
  return "runId" in frame.data;
}

/** Return whether events before this frame were missed, so that the session must be subscribed again. */
export function hasGapBefore(state: SessionState, frame: RunFrame): boolean {
  const seq = frame.data.seq ?? 0;
  const applied = state.runs[frame.data.runId]?.seq ?? 0;
  return seq > applied + 1 && frame.event !== "chat.reset";
}

/** Apply a frame of one of the session's runs. A frame that was already applied changes nothing. */
export function applyFrame(state: SessionState, frame: RunFrame): SessionState {
  const { runId, seq = 0 } = frame.data;
  const run = state.runs[runId] ?? newRun(runId);
  if (seq <= run.seq) return state;
  const next: SessionState = { ...state, runs: { ...state.runs, [runId]: { ...updateRun(run, frame), seq } } };
  return frame.event === "chat.message" ? addMessage(next, frame.data.message) : next;
}

function updateRun(run: RunState, frame: RunFrame): RunState {
  switch (frame.event) {
    case "chat.started":
      return {
        ...run,
        status: "running",
        agentId: frame.data.agentId,
        model: frame.data.model,
        notice: frame.data.notice ?? "",
      };
    case "chat.delta":
      return { ...run, status: "running", text: run.text + frame.data.text };
    case "chat.reasoning":
      return { ...run, status: "running", reasoning: run.reasoning + frame.data.text };
    case "chat.reset":
      return { ...run, text: "", reasoning: "" };
    case "chat.message":
      return frame.data.message.role === "assistant"
        ? { ...run, text: "", reasoning: "" }
        : { ...run, status: "running" };
    case "plan.updated":
      return { ...run, plan: frame.data.steps };
    case "chat.final":
      return frame.data.cancelled
        ? { ...run, status: "cancelled" }
        : { ...run, text: "", reasoning: "", status: "done", usage: frame.data.usage };
    case "chat.error":
      return { ...run, status: "failed", error: frame.data.message, errorKind: frame.data.kind };
    default:
      return { ...run, calls: { ...run.calls, ...updateCalls(run.calls, frame) } };
  }
}

function updateCalls(calls: Record<string, ToolCallState>, frame: RunFrame): Record<string, ToolCallState> {
  const update = (id: string, change: Partial<ToolCallState>): Record<string, ToolCallState> => ({
    [id]: { ...(calls[id] ?? { status: "called", progress: EMPTY_OUTPUT }), ...change },
  });
  switch (frame.event) {
    case "tool.call":
      return update(frame.data.toolCallId, { status: "running" });
    case "tool.progress": {
      const { toolCallId, message } = frame.data;
      return update(toolCallId, { progress: appendLine(calls[toolCallId]?.progress ?? EMPTY_OUTPUT, message) });
    }
    case "tool.result": {
      const { toolCallId, status, result, error, durationMs } = frame.data;
      return update(toolCallId, { status, result, error: error ?? undefined, durationMs, approval: undefined });
    }
    case "exec.approval_request":
      return update(frame.data.toolCallId, { status: "needs-approval", approval: approvalOf(frame.data) });
    case "approval.resolved": {
      const { approvalId, decision, by } = frame.data;
      const call = Object.entries(calls).find(([, each]) => each.approval?.approvalId === approvalId);
      return call ? update(call[0], { status: "running", approval: undefined, decision, by }) : {};
    }
    default:
      return {};
  }
}

function approvalOf(data: Events["exec.approval_request"]): ApprovalShape {
  return { ...data, sessionKey: data.sessionKey ?? "" };
}

function addMessage(state: SessionState, message: MessageShape): SessionState {
  if (state.messages.some((known) => known.id === message.id)) return removeDelivered(state);
  return removeDelivered({ ...state, messages: [...state.messages, message] });
}

/** Remove pending messages that are now part of the session. */
function removeDelivered(state: SessionState): SessionState {
  const userMessages = state.messages.filter((message) => message.role === "user");
  const delivered = new Set(userMessages.map((message) => message.metadata?.steering_run ?? message.runId));
  const pending = state.pending.filter((message) => message.runId === undefined || !delivered.has(message.runId));
  return pending.length === state.pending.length ? state : { ...state, pending };
}

/** Add a pending message, or replace the one with the same key. */
export function addPending(state: SessionState, message: PendingMessage): SessionState {
  return { ...state, pending: [...state.pending.filter((each) => each.key !== message.key), message] };
}

/** Record that the gateway has accepted a message. Its frame may have arrived before this response. */
export function markAccepted(state: SessionState, key: string, runId: string, queued: boolean): SessionState {
  const pending = state.pending.map((message) =>
    message.key === key ? { ...message, runId, state: queued ? ("queued" as const) : ("sending" as const) } : message,
  );
  return removeDelivered({ ...state, pending });
}

export function markFailed(state: SessionState, key: string, error: string): SessionState {
  const pending = state.pending.map((message) =>
    message.key === key ? { ...message, state: "failed" as const, error } : message,
  );
  return { ...state, pending };
}

export function removePending(state: SessionState, key: string): SessionState {
  return { ...state, pending: state.pending.filter((message) => message.key !== key) };
}
