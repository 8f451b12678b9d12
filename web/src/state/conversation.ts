// The conversation as the chat shows it: user messages, answers with all their rounds and tool calls, and pending
// messages.

import type { MessageShape, PlanStepShape, ToolCallPart, ToolResultPart } from "../wire";
import { formatToolName } from "./format";
import type { ImageData } from "./images";
import { isOpenRun, type PendingMessage, type RunState, type SessionState, type ToolCallState } from "./session";
import { EMPTY_OUTPUT } from "./tool-output";

export interface UserItem {
  kind: "user";
  id: string;
  message: MessageShape;
  /** The message before it; empty if it is the first one, undefined if that is not loaded. */
  previousId?: string;
}

/** All assistant and tool messages of one run. */
export interface AnswerItem {
  kind: "answer";
  id: string;
  runId: string;
  messages: MessageShape[];
  plan?: readonly PlanStepShape[];
  run?: RunState;
}

export interface PendingItem {
  kind: "pending";
  id: string;
  message: PendingMessage;
}

/** The place at which the older messages were summarised for the model. */
export interface SummaryItem {
  kind: "summary";
  id: string;
  message: MessageShape;
}

export type ConversationItem = UserItem | AnswerItem | PendingItem | SummaryItem;

/** Return the items of the open session in display order. */
export function conversationItems(state: SessionState): ConversationItem[] {
  const items: ConversationItem[] = [];
  const answeredRuns = new Set<string>();
  const continued = new Map<string, string>();
  let current: AnswerItem | undefined;
  let userRunId = "";
  let plan: AnswerItem["plan"];
  const addAnswer = (runId: string, fallback = ""): AnswerItem => {
    const run = state.runs[runId];
    const id = continued.get(runId) ?? (runId || fallback);
    const item: AnswerItem = { kind: "answer", id, runId, messages: [], plan: run?.plan ?? plan, run };
    if (runId) answeredRuns.add(runId);
    items.push(item);
    return item;
  };
  const addUnansweredRun = () => {
    const run = userRunId ? state.runs[userRunId] : undefined;
    if (run && !answeredRuns.has(userRunId) && run.status !== "queued") addAnswer(userRunId);
    userRunId = "";
  };
  /** A steering message splits the answer of its run: what is live belongs to the part after it. */
  const splitAnswer = (runId: string, messageId: string) => {
    if (userRunId === runId) userRunId = "";
    for (const item of items)
      if (item.kind === "answer" && item.runId === runId) {
        item.run = undefined;
        item.plan = undefined;
      }
    answeredRuns.delete(runId);
    continued.set(runId, `${runId} after ${messageId}`);
  };
  let following: string | undefined = state.hasOlder ? undefined : "";
  for (const message of state.messages) {
    const previousId = following;
    following = message.id;
    if (message.role === "system" || message.metadata?.recalled) continue;
    if (isSummary(message)) {
      items.push({ kind: "summary", id: message.id, message });
    } else if (isSynthetic(message)) {
      plan = planOf(message) ?? plan;
      if (current && !current.run?.plan) current.plan = plan;
    } else if (message.role === "user") {
      if (message.runId && message.metadata?.steering_run) splitAnswer(message.runId, message.id);
      addUnansweredRun();
      current = undefined;
      plan = undefined;
      items.push({ kind: "user", id: message.id, message, previousId });
      userRunId = message.runId ?? "";
    } else {
      const runId = message.runId ?? "";
      if (!current || current.runId !== runId) current = addAnswer(runId, `after ${message.id}`);
      current.messages.push(message);
    }
  }
  addUnansweredRun();
  const userRuns = new Set(state.messages.filter(({ role }) => role === "user").map(({ runId }) => runId));
  for (const { runId, status } of Object.values(state.runs))
    if (status === "running" && !answeredRuns.has(runId) && !userRuns.has(runId)) addAnswer(runId);
  for (const message of state.pending) items.push({ kind: "pending", id: message.key, message });
  return items;
}

/** Return whether a message with the user role was written by the run itself, for example a plan step. */
export function isSynthetic(message: MessageShape): boolean {
  return message.role === "user" && message.metadata?.synthetic === true;
}

function isSummary(message: MessageShape): boolean {
  return isSynthetic(message) && typeof message.metadata?.summary === "object";
}

function planOf({ metadata }: MessageShape): AnswerItem["plan"] {
  const plan = metadata?.plan as AnswerItem["plan"];
  return Array.isArray(plan) && plan.length ? plan : undefined;
}

/** Return whether two items render the same, so that a row can skip rendering. */
export function isSameItem(a: ConversationItem, b: ConversationItem): boolean {
  if (a === b) return true;
  if (a.id !== b.id) return false;
  if (a.kind === "answer" && b.kind === "answer")
    return (
      a.run === b.run &&
      a.plan === b.plan &&
      a.messages.length === b.messages.length &&
      a.messages.every((message, index) => message === b.messages[index])
    );
  return a.kind !== "answer" && a.kind === b.kind && a.message === b.message;
}

export interface ToolCallView extends ToolCallState {
  id: string;
  runId: string;
  name: string;
  arguments: Record<string, unknown>;
}

export type AnswerPiece =
  | { kind: "text"; id: string; text: string; streaming: boolean }
  | { kind: "reasoning"; id: string; text: string; streaming: boolean }
  | { kind: "image"; id: string; image: ImageData }
  | { kind: "call"; id: string; call: ToolCallView }
  | { kind: "handoff"; id: string; from: string; to: string; note: string };

/** Return the pieces of an answer in order. */
export function answerPieces({ messages, run }: AnswerItem): AnswerPiece[] {
  const results = new Map<string, ToolResultPart>();
  for (const message of messages)
    for (const part of message.parts) if (part.type === "tool_result") results.set(part.callId, part);
  const pieces: AnswerPiece[] = [];
  messages.forEach((message, messageIndex) => {
    if (message.role !== "assistant") return;
    message.parts.forEach((part, partIndex) => {
      const id = `${messageIndex}.${partIndex}`;
      if (part.type === "text" && part.text) pieces.push({ kind: "text", id, text: part.text, streaming: false });
      else if (part.type === "thinking" && part.text)
        pieces.push({ kind: "reasoning", id, text: part.text, streaming: false });
      else if (part.type === "image" && part.data)
        pieces.push({ kind: "image", id, image: { mediaType: part.mediaType, data: part.data, name: "" } });
      else if (part.type === "tool_call")
        pieces.push(callPiece(part, message, toolCallView(part, message, run, results.get(part.id))));
    });
  });
  const streaming = run?.status === "running";
  if (run?.reasoning)
    pieces.push({ kind: "reasoning", id: "live.reasoning", text: run.reasoning, streaming: streaming && !run.text });
  if (run?.text) pieces.push({ kind: "text", id: "live.text", text: run.text, streaming });
  return pieces;
}

const HAND_OFF = "hand_off";

/** A successful hand-off is not drawn as a call of a tool. */
function callPiece(part: ToolCallPart, { agentId = "" }: MessageShape, call: ToolCallView): AnswerPiece {
  const { handed_to: to, note } = (call.result ?? {}) as { handed_to?: unknown; note?: unknown };
  if (part.name !== HAND_OFF || call.status !== "ok" || typeof to !== "string")
    return { kind: "call", id: part.id, call };
  return { kind: "handoff", id: part.id, from: agentId, to, note: typeof note === "string" ? note : "" };
}

/** Return the agent that speaks first in an answer; empty if it is not known. */
export function firstSpeaker({ messages, run }: AnswerItem): string {
  return messages.find((message) => message.agentId)?.agentId ?? run?.agentId ?? "";
}

function toolCallView(
  part: ToolCallPart,
  { runId = "" }: MessageShape,
  run: RunState | undefined,
  result?: ToolResultPart,
): ToolCallView {
  const live = run?.calls[part.id];
  const name = formatToolName(part.name);
  const call = { id: part.id, runId, name, arguments: part.arguments as Record<string, unknown> };
  if (result)
    return {
      progress: EMPTY_OUTPUT,
      ...live,
      ...call,
      status: result.status,
      result: result.result,
      error: result.error ?? undefined,
      durationMs: live?.durationMs ?? result.durationMs ?? undefined,
    };
  if (live) return { ...live, ...call };
  return { ...call, status: run && isOpenRun(run) ? "running" : "unknown", progress: EMPTY_OUTPUT };
}

export interface AnswerUsage {
  input: number;
  output: number;
  cached: number;
  cost?: number;
  estimated: boolean;
  model: string;
}

/** Sum tokens and cost over the rounds of an answer. */
export function answerUsage(item: AnswerItem): AnswerUsage | undefined {
  let total: AnswerUsage | undefined;
  for (const { role, metadata } of item.messages) {
    const usage = metadata?.usage as { input: number; output: number; cached: number } | undefined;
    if (role !== "assistant" || !usage) continue;
    total ??= { input: 0, output: 0, cached: 0, estimated: false, model: "" };
    total.input += usage.input;
    total.output += usage.output;
    total.cached += usage.cached;
    if (typeof metadata?.cost === "number") total.cost = (total.cost ?? 0) + metadata.cost;
    total.estimated ||= metadata?.estimated === true;
    total.model = String(metadata?.model ?? metadata?.provider ?? total.model);
  }
  return total;
}

/** Return the limit of rounds at which an answer stopped; undefined if it did not stop there. */
export function roundLimit({ messages, run }: AnswerItem): number | undefined {
  if (run && run.status !== "done") return undefined;
  const limit = messages.findLast(({ role }) => role === "assistant")?.metadata?.max_rounds;
  return typeof limit === "number" ? limit : undefined;
}

/** Return the text of messages without tool output. */
export function messageText(messages: readonly MessageShape[]): string {
  const texts = messages
    .filter((message) => message.role !== "tool")
    .flatMap((message) => message.parts.map((part) => (part.type === "text" ? part.text : "")));
  return texts.filter(Boolean).join("\n\n");
}
