import { expect, it } from "vitest";
import type { MessageShape } from "../wire";
import { emptyTalk, freshRun } from "./talk";
import { type Answered, isSame, itemsOf, piecesOf, spentOn } from "./turns";

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
const answered = (items: ReturnType<typeof itemsOf>): Answered[] => items.filter((item) => item.kind === "answered");

it("rounds of one turn are one answer, and its calls have their results", () => {
  const talk = {
    ...emptyTalk("s"),
    messages: [user("u", "r"), reply("a", "r"), result("x", "ca", "r"), reply("b", "r")],
  };
  const items = itemsOf(talk);
  expect(items.map((item) => item.kind)).toEqual(["said", "answered"]);
  const pieces = piecesOf(answered(items)[0]!);
  expect(pieces.map((piece) => piece.kind)).toEqual(["text", "call", "text", "call"]);
  expect(pieces.flatMap((piece) => (piece.kind === "call" ? [piece.call.state] : []))).toEqual(["ok", "unknown"]);
});

it("messages of a fork, which belong to no turn, are told apart by what a person said", () => {
  const items = itemsOf({ ...emptyTalk("s"), messages: [user("1"), reply("2"), user("3"), reply("4")] });
  expect(items.map((item) => item.kind)).toEqual(["said", "answered", "said", "answered"]);
  expect(new Set(items.map((item) => item.id)).size).toBe(4);
});

it("a turn that has only begun shows an answer, and one that waits does not", () => {
  const talk = { ...emptyTalk("s"), messages: [user("u", "r")] };
  expect(answered(itemsOf({ ...talk, runs: { r: freshRun("r") } }))).toHaveLength(1);
  expect(answered(itemsOf({ ...talk, runs: { r: { ...freshRun("r"), end: "queued" } } }))).toHaveLength(0);
});

it("an answer that has not changed is the same", () => {
  const talk = { ...emptyTalk("s"), messages: [user("u", "r"), reply("a", "r")] };
  const [before, after] = [
    answered(itemsOf(talk))[0]!,
    answered(itemsOf({ ...talk, messages: [...talk.messages, user("v")] }))[0]!,
  ];
  expect(isSame(before, after)).toBe(true);
  expect(isSame(before, answered(itemsOf({ ...talk, runs: { r: freshRun("r") } }))[0]!)).toBe(false);
});

it("what a turn writes to itself is nobody's word, and its plan is the answer's", () => {
  const own = (id: string, status: string): MessageShape => ({
    id,
    role: "user",
    parts: [{ type: "text", text: "next step" }],
    createdAt: 1,
    runId: "r",
    metadata: { synthetic: true, plan: [{ text: "look", status }] },
  });
  const talk = {
    ...emptyTalk("s"),
    messages: [user("u", "r"), own("1", "pending"), reply("a", "r"), own("2", "done"), reply("b", "r"), user("v")],
  };
  const items = itemsOf(talk);
  expect(items.map((item) => item.kind)).toEqual(["said", "answered", "said"]);
  expect(answered(items)[0]?.plan).toEqual([{ text: "look", status: "done" }]);
  const live = { ...freshRun("r"), plan: [{ text: "look", status: "running" as const }] };
  expect(answered(itemsOf({ ...talk, runs: { r: live } }))[0]?.plan).toEqual(live.plan);
});

it("tokens and cost are summed over rounds", () => {
  const item = answered(itemsOf({ ...emptyTalk("s"), messages: [reply("a", "r", 0.5), reply("b", "r", 0.25)] }))[0]!;
  expect(spentOn(item)).toEqual({ input: 20, output: 4, cached: 2, cost: 0.75, estimated: false, model: "m" });
});
