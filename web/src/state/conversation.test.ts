import { expect, it } from "vitest";
import type { MessageShape } from "../wire";
import {
  type AnswerItem,
  answerPieces,
  answerUsage,
  type ConversationItem,
  conversationItems,
  isSameItem,
  roundLimit,
} from "./conversation";
import { emptySession, newRun, type RunState } from "./session";

const user = (id: string, runId = ""): MessageShape => ({
  id,
  role: "user",
  parts: [{ type: "text", text: id }],
  createdAt: 1,
  runId,
});
const reply = (id: string, runId = "", cost?: number): MessageShape => ({
  id,
  role: "assistant",
  parts: [
    { type: "text", text: id },
    { type: "tool_call", id: `c${id}`, name: "t", arguments: {} },
  ],
  createdAt: 1,
  runId,
  metadata: { usage: { input: 10, output: 2, cached: 1 }, model: "m", ...(cost === undefined ? {} : { cost }) },
});
const result = (id: string, call: string, runId = ""): MessageShape => ({
  id,
  role: "tool",
  parts: [{ type: "tool_result", callId: call, status: "ok", result: 1 }],
  createdAt: 1,
  runId,
});
const answers = (items: ConversationItem[]): AnswerItem[] => items.filter((item) => item.kind === "answer");
const firstAnswer = (items: ConversationItem[]): AnswerItem => {
  const [first] = answers(items);
  if (!first) throw new Error("no answer");
  return first;
};

it("all rounds of a run form one answer whose calls have results", () => {
  const state = {
    ...emptySession("s"),
    messages: [user("u", "r"), reply("a", "r"), result("x", "ca", "r"), reply("b", "r")],
  };
  const items = conversationItems(state);
  expect(items.map((item) => item.kind)).toEqual(["user", "answer"]);
  const pieces = answerPieces(firstAnswer(items));
  expect(pieces.map((piece) => piece.kind)).toEqual(["text", "call", "text", "call"]);
  expect(pieces.flatMap((piece) => (piece.kind === "call" ? [piece.call.status] : []))).toEqual(["ok", "unknown"]);
});

it("an answer that reached the limit of rounds says how many there were, unless the run goes on or did not finish", () => {
  const last = reply("b", "r");
  const messages = [user("u", "r"), reply("a", "r"), result("x", "ca", "r"), { ...last, metadata: { max_rounds: 2 } }];
  const limit = (run?: Partial<RunState>, more: MessageShape[] = [result("y", "cb", "r")]) => {
    const runs: Record<string, RunState> = run ? { r: { ...newRun("r"), ...run } } : {};
    const state = { ...emptySession("s"), messages: [...messages, ...more], runs };
    return roundLimit(firstAnswer(conversationItems(state)));
  };
  expect(limit()).toBe(2);
  expect(limit({ status: "done" })).toBe(2);
  for (const status of ["running", "queued", "failed", "cancelled"] as const) expect(limit({ status })).toBeUndefined();
  expect(limit(undefined, [result("y", "cb", "r"), reply("c", "r")])).toBeUndefined();
});

it("messages of a fork without run ids are split at user messages", () => {
  const items = conversationItems({ ...emptySession("s"), messages: [user("1"), reply("2"), user("3"), reply("4")] });
  expect(items.map((item) => item.kind)).toEqual(["user", "answer", "user", "answer"]);
  expect(new Set(items.map((item) => item.id)).size).toBe(4);
});

it("a run that has started shows an answer and a queued run does not", () => {
  const state = { ...emptySession("s"), messages: [user("u", "r")] };
  expect(answers(conversationItems({ ...state, runs: { r: newRun("r") } }))).toHaveLength(1);
  expect(answers(conversationItems({ ...state, runs: { r: { ...newRun("r"), status: "queued" } } }))).toHaveLength(0);
});

it("an unchanged answer equals its previous version", () => {
  const state = { ...emptySession("s"), messages: [user("u", "r"), reply("a", "r")] };
  const [before, after] = [
    firstAnswer(conversationItems(state)),
    firstAnswer(conversationItems({ ...state, messages: [...state.messages, user("v")] })),
  ];
  expect(isSameItem(before, after)).toBe(true);
  expect(isSameItem(before, firstAnswer(conversationItems({ ...state, runs: { r: newRun("r") } })))).toBe(false);
});

it("synthetic messages are hidden and update the plan of the answer", () => {
  const own = (id: string, status: string): MessageShape => ({
    id,
    role: "user",
    parts: [{ type: "text", text: "next step" }],
    createdAt: 1,
    runId: "r",
    metadata: { synthetic: true, plan: [{ text: "look", status }] },
  });
  const state = {
    ...emptySession("s"),
    messages: [user("u", "r"), own("1", "pending"), reply("a", "r"), own("2", "done"), reply("b", "r"), user("v")],
  };
  const items = conversationItems(state);
  expect(items.map((item) => item.kind)).toEqual(["user", "answer", "user"]);
  expect(answers(items)[0]?.plan).toEqual([{ text: "look", status: "done" }]);
  const live = { ...newRun("r"), plan: [{ text: "look", status: "running" as const }] };
  expect(answers(conversationItems({ ...state, runs: { r: live } }))[0]?.plan).toEqual(live.plan);
});

it("a summary marks its place between the messages", () => {
  const summary: MessageShape = {
    id: "s",
    role: "user",
    parts: [{ type: "text", text: "The user counts." }],
    createdAt: 1,
    runId: "r",
    metadata: { synthetic: true, summary: { through: "u", messages: 12 } },
  };
  const items = conversationItems({ ...emptySession("s"), messages: [user("u", "r"), summary, reply("a", "r")] });
  expect(items.map((item) => item.kind)).toEqual(["user", "summary", "answer"]);
});

it("token usage and cost are summed over rounds", () => {
  const item = firstAnswer(
    conversationItems({ ...emptySession("s"), messages: [reply("a", "r", 0.5), reply("b", "r", 0.25)] }),
  );
  expect(answerUsage(item)).toEqual({ input: 20, output: 4, cached: 2, cost: 0.75, estimated: false, model: "m" });
});

it("a steering message splits the answer of its run, and what is live follows it", () => {
  const steering = (id: string): MessageShape => ({ ...user(id, "r"), metadata: { steering_run: `run ${id}` } });
  const live = { ...newRun("r"), text: "so" };
  const messages = [user("u", "r"), reply("a", "r"), result("x", "ca", "r"), steering("v"), steering("w")];
  const state = { ...emptySession("s"), messages, runs: { r: live } };
  const items = conversationItems(state);
  expect(items.map((item) => item.kind)).toEqual(["user", "answer", "user", "user", "answer"]);
  expect(new Set(items.map((item) => item.id)).size).toBe(5);
  expect(answers(items).map((item) => item.run)).toEqual([undefined, live]);
  const later = conversationItems({ ...state, messages: [...messages, reply("b", "r")] });
  expect(later.map((item) => item.id)).toEqual(items.map((item) => item.id));
});
