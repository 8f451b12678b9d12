// Messages as a person reads them: what was said by somebody, and then one answer with all its rounds and calls.

import type { MessageShape, PlanStepShape, ToolCallPart, ToolResultPart } from "../wire";
import { NOTHING } from "./lines";
import type { Picture } from "./pictures";
import type { Call, Outgoing, Run, Talk } from "./talk";

export interface Said {
  kind: "said";
  id: string;
  message: MessageShape;
}

export interface Answered {
  kind: "answered";
  id: string;
  runId: string;
  messages: MessageShape[];
  plan?: readonly PlanStepShape[];
  run?: Run;
}

export interface Leaving {
  kind: "leaving";
  id: string;
  outgoing: Outgoing;
}

export type Item = Said | Answered | Leaving;

/** What the open session shows, in order. */
export function itemsOf(talk: Talk): Item[] {
  const items: Item[] = [];
  const seen = new Set<string>();
  let current: Answered | undefined;
  const close = () => {
    current = undefined;
  };
  const answer = (runId: string, id: string): Answered => {
    const made: Answered = {
      kind: "answered",
      id,
      runId,
      messages: [],
      plan: talk.runs[runId]?.plan ?? plan,
      run: talk.runs[runId],
    };
    if (runId) seen.add(runId);
    items.push(made);
    return made;
  };
  let asked = "";
  let plan: Answered["plan"];
  const unanswered = () => {
    const run = asked ? talk.runs[asked] : undefined;
    if (run && !seen.has(asked) && hasSomething(run)) answer(asked, asked);
    asked = "";
  };
  for (const message of talk.messages) {
    if (message.role === "system" || message.metadata?.recalled) continue; // nobody said it
    if (isOwn(message)) {
      plan = planOf(message) ?? plan;
      if (current && !current.run?.plan) current.plan = plan;
      continue;
    }
    if (message.role === "user") {
      unanswered();
      close();
      plan = undefined;
      items.push({ kind: "said", id: message.id, message });
      asked = message.runId ?? "";
      continue;
    }
    const runId = message.runId ?? "";
    if (!current || current.runId !== runId) current = answer(runId, runId || `after ${message.id}`);
    current.messages.push(message);
  }
  unanswered();
  for (const run of Object.values(talk.runs))
    if (
      !seen.has(run.runId) &&
      run.end === "running" &&
      hasSomething(run) &&
      !talk.messages.some((m) => m.runId === run.runId && m.role === "user")
    )
      answer(run.runId, run.runId);
  for (const outgoing of talk.outgoing) items.push({ kind: "leaving", id: outgoing.key, outgoing });
  return items;
}

/** A message that the turn wrote to itself: no person said it. */
export function isOwn(message: MessageShape): boolean {
  return message.role === "user" && message.metadata?.synthetic === true;
}

/** The plan as it stood when the turn wrote this; every later one takes its place. */
function planOf({ metadata }: MessageShape): Answered["plan"] {
  const found = metadata?.plan as Answered["plan"];
  return Array.isArray(found) && found.length ? found : undefined;
}

function hasSomething(run: Run): boolean {
  return run.end !== "queued";
}

/** Whether two items look the same: then one need not be drawn again. */
export function isSame(a: Item, b: Item): boolean {
  if (a === b) return true;
  if (a.kind !== b.kind || a.id !== b.id) return false;
  if (a.kind === "said" && b.kind === "said") return a.message === b.message;
  if (a.kind === "leaving" && b.kind === "leaving") return a.outgoing === b.outgoing;
  if (a.kind !== "answered" || b.kind !== "answered") return false;
  return (
    a.run === b.run &&
    a.plan === b.plan &&
    a.messages.length === b.messages.length &&
    a.messages.every((each, place) => each === b.messages[place])
  );
}

export interface CallView extends Call {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
}

export type Piece =
  | { kind: "text"; id: string; text: string; growing: boolean }
  | { kind: "thinking"; id: string; text: string; growing: boolean }
  | { kind: "picture"; id: string; picture: Picture }
  | { kind: "call"; id: string; call: CallView };

/** The pieces of an answer, in the order they came. */
export function piecesOf(item: Answered): Piece[] {
  const { messages, run } = item;
  const results = new Map<string, ToolResultPart>();
  for (const message of messages)
    for (const part of message.parts) if (part.type === "tool_result") results.set(part.callId, part);
  const pieces: Piece[] = [];
  messages.forEach((message, place) => {
    if (message.role !== "assistant") return;
    message.parts.forEach((part, number) => {
      const id = `${place}.${number}`;
      if (part.type === "text" && part.text) pieces.push({ kind: "text", id, text: part.text, growing: false });
      else if (part.type === "thinking" && part.text)
        pieces.push({ kind: "thinking", id, text: part.text, growing: false });
      else if (part.type === "image" && part.data)
        pieces.push({ kind: "picture", id, picture: { kind: part.mediaType, data: part.data, name: "" } });
      else if (part.type === "tool_call")
        pieces.push({ kind: "call", id: part.id, call: callOf(part, run, results.get(part.id)) });
    });
  });
  const growing = run?.end === "running";
  if (run?.thinking)
    pieces.push({ kind: "thinking", id: "now.thinking", text: run.thinking, growing: growing && !run.text });
  if (run?.text) pieces.push({ kind: "text", id: "now.text", text: run.text, growing });
  return pieces;
}

function callOf(part: ToolCallPart, run: Run | undefined, result: ToolResultPart | undefined): CallView {
  const live = run?.calls[part.id];
  const base = { id: part.id, name: part.name, arguments: part.arguments as Record<string, unknown> };
  if (result) {
    const durationMs = live?.durationMs ?? result.durationMs ?? undefined;
    return {
      progress: NOTHING,
      ...live,
      ...base,
      state: result.status,
      result: result.result,
      error: result.error ?? undefined,
      durationMs,
    };
  }
  if (live) return { ...live, ...base };
  const over = run !== undefined && run.end !== "running" && run.end !== "queued";
  return { ...base, state: over || !run ? "unknown" : "running", progress: NOTHING };
}

export interface Spent {
  input: number;
  output: number;
  cached: number;
  cost?: number;
  estimated: boolean;
  model: string;
}

/** Tokens and cost of an answer, summed over its rounds. */
export function spentOn(item: Answered): Spent | undefined {
  let spent: Spent | undefined;
  for (const { role, metadata } of item.messages) {
    const usage = metadata?.usage as { input: number; output: number; cached: number } | undefined;
    if (role !== "assistant" || !usage) continue;
    spent ??= { input: 0, output: 0, cached: 0, estimated: false, model: "" };
    spent.input += usage.input;
    spent.output += usage.output;
    spent.cached += usage.cached;
    if (typeof metadata?.cost === "number") spent.cost = (spent.cost ?? 0) + metadata.cost;
    spent.estimated ||= metadata?.estimated === true;
    spent.model = String(metadata?.model ?? metadata?.provider ?? spent.model);
  }
  return spent;
}

/** The words of an answer, for the clipboard. */
export function wordsOf(messages: readonly MessageShape[]): string {
  const texts = messages
    .filter((message) => message.role !== "tool")
    .flatMap((message) => message.parts.map((part) => (part.type === "text" ? part.text : "")));
  return texts.filter(Boolean).join("\n\n");
}
