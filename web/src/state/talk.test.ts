import { describe, expect, it } from "vitest";
import type { EventFrame } from "../net/connection";
import type { MessageShape, Subscribed } from "../wire";
import * as talks from "./talk";

type RunFrame = Parameters<typeof talks.heard>[1];

const frame = (event: string, seq: number, data: object = {}, runId = "r"): RunFrame =>
  ({ event, data: { runId, seq, sessionKey: "s", ...data } }) as unknown as RunFrame;
const message = (id: string, role: MessageShape["role"], text: string, runId = "r", seq = 0): MessageShape => ({
  id,
  role,
  parts: [{ type: "text", text }],
  createdAt: 1,
  runId,
  seq,
});
const all = (talk: talks.Talk, ...frames: RunFrame[]): talks.Talk => frames.reduce(talks.heard, talk);
const session = { sessionKey: "s", label: "", agentId: "", archived: false, running: true, createdAt: 1, updatedAt: 1 };
const answer = (part: Partial<Subscribed>): Subscribed => ({ session, messages: [], runs: [], ...part });
const empty = talks.emptyTalk("s");

describe("frames of a run", () => {
  it("join words, and make a message of them", () => {
    const talk = all(
      empty,
      frame("chat.message", 1, { message: message("u", "user", "hi") }),
      frame("chat.delta", 2, { text: "Hel" }),
      frame("chat.delta", 3, { text: "lo" }),
    );
    expect(talk.runs.r?.text).toBe("Hello");
    const kept = all(
      talk,
      frame("chat.message", 4, { message: message("a", "assistant", "Hello") }),
      frame("chat.final", 5, { usage: { inputTokens: 1, outputTokens: 2 } }),
    );
    expect(kept.messages.map((each) => each.id)).toEqual(["u", "a"]);
    expect(kept.runs.r).toMatchObject({ text: "", end: "done", seq: 5 });
  });

  it("change nothing when they come twice", () => {
    const once = all(empty, frame("chat.delta", 1, { text: "a" }));
    expect(all(once, frame("chat.delta", 1, { text: "a" }))).toBe(once);
  });

  it("withdraw what a reset takes back, and only that", () => {
    const talk = all(
      empty,
      frame("chat.message", 1, { message: message("a", "assistant", "kept") }),
      frame("chat.reasoning", 2, { text: "hm" }),
      frame("chat.delta", 3, { text: "half" }),
      frame("chat.reset", 512, { attempt: 1 }),
      frame("chat.delta", 513, { text: "whole" }),
    );
    expect(talk.runs.r).toMatchObject({ text: "whole", thinking: "", seq: 513 });
    expect(talk.messages).toHaveLength(1);
  });

  it("show a gap, except where a reset explains it", () => {
    const talk = all(empty, frame("chat.delta", 1, { text: "a" }));
    expect(talks.isGap(talk, frame("chat.delta", 2))).toBe(false);
    expect(talks.isGap(talk, frame("chat.delta", 4))).toBe(true);
    expect(talks.isGap(talk, frame("chat.reset", 512))).toBe(false);
  });

  it("follow a call from its question to its result", () => {
    const asked = {
      approvalId: "q",
      toolCallId: "c",
      toolName: "t",
      summary: "",
      details: {},
      command: "",
      workingDir: "",
      risk: "",
      options: [],
      expiresAt: 1,
    };
    let talk = all(
      empty,
      frame("tool.call", 1, { toolCallId: "c", name: "t", arguments: {} }),
      frame("exec.approval_request", 2, asked),
    );
    expect(talk.runs.r?.calls.c).toMatchObject({ state: "asking", approval: { approvalId: "q" } });
    talk = all(
      talk,
      frame("approval.resolved", 3, { approvalId: "q", decision: "allow-once", by: "me" }),
      frame("tool.progress", 4, { toolCallId: "c", message: "1 of 2" }),
    );
    expect(talk.runs.r?.calls.c).toMatchObject({
      state: "running",
      approval: undefined,
      by: "me",
      progress: { text: "1 of 2", cut: false },
    });
    talk = all(
      talk,
      frame("tool.result", 5, {
        toolCallId: "c",
        name: "t",
        status: "error",
        result: "no",
        error: "timeout",
        durationMs: 3,
      }),
    );
    expect(talk.runs.r?.calls.c).toMatchObject({ state: "error", error: "timeout", durationMs: 3 });
  });

  it("keep the words of a turn that was stopped", () => {
    const talk = all(
      empty,
      frame("chat.delta", 1, { text: "half" }),
      frame("chat.final", 2, { usage: {}, cancelled: true }),
    );
    expect(talk.runs.r).toMatchObject({ end: "cancelled", text: "half" });
  });
});

describe("coming back", () => {
  it("names the open runs with their last number", () => {
    const talk = all(
      empty,
      frame("chat.delta", 1, { text: "a" }),
      frame("chat.delta", 1, { text: "b" }, "other"),
      frame("chat.error", 2, { message: "x", kind: "k" }, "other"),
    );
    expect(talks.positions(talk)).toEqual({ r: 1 });
  });

  it("adds what was missed, once", () => {
    const talk = { ...empty, messages: [message("1", "user", "a", "r", 1)], loaded: true };
    const next = talks.subscribed(
      talk,
      answer({ messages: [message("1", "user", "a", "r", 1), message("2", "assistant", "b", "r", 2)] }),
    );
    expect(next.messages.map((each) => each.id)).toEqual(["1", "2"]);
  });

  it("takes a snapshot for a run it has not heard, with the question that is open", () => {
    const pendingApproval = {
      approvalId: "q",
      runId: "r",
      sessionKey: "s",
      toolCallId: "c",
      toolName: "t",
      summary: "",
      details: {},
      command: "",
      workingDir: "",
      risk: "",
      options: [],
      expiresAt: 1,
    };
    const next = talks.subscribed(
      empty,
      answer({
        runs: [{ runId: "r", mode: "snapshot", seq: 7, parts: [{ type: "text", text: "so far" }], pendingApproval }],
      }),
    );
    expect(next.runs.r).toMatchObject({ seq: 7, text: "so far", calls: { c: { state: "asking" } } });
    expect(all(next, frame("chat.delta", 8, { text: "!" })).runs.r?.text).toBe("so far!");
  });

  it("forgets an open run that the gateway does not know, and learns how others ended", () => {
    const talk = all(empty, frame("chat.delta", 1, { text: "a" }));
    const next = talks.subscribed(talk, answer({ outcomes: [{ runId: "x", status: "failed", error: "why" }] }));
    expect(next.runs.r).toBeUndefined();
    expect(next.runs.x).toMatchObject({ end: "failed", error: "why" });
  });

  it("knows the words of a turn that was stopped, also of one that is far back", () => {
    const outcomes = [
      {
        runId: "x",
        status: "cancelled" as const,
        parts: [
          { type: "thinking" as const, text: "hm" },
          { type: "text" as const, text: "half" },
        ],
      },
    ];
    const stopped = { end: "cancelled", text: "half", thinking: "hm" };
    expect(talks.subscribed(empty, answer({ outcomes })).runs.x).toMatchObject(stopped);
    expect(talks.withOlder(empty, { messages: [], hasMore: false, outcomes }).runs.x).toMatchObject(stopped);
  });

  it("hears the missed frames of a stopped turn once, though its outcome is told as well", () => {
    const talk = all(empty, frame("chat.delta", 1, { text: "ha" }));
    const outcomes = [{ runId: "r", status: "cancelled" as const, parts: [{ type: "text" as const, text: "half" }] }];
    const next = talks.subscribed(talk, answer({ outcomes, runs: [{ runId: "r", mode: "replay", seq: 3 }] }));
    expect(
      all(next, frame("chat.delta", 2, { text: "lf" }), frame("chat.final", 3, { usage: {}, cancelled: true })).runs.r,
    ).toMatchObject({ end: "cancelled", text: "half" });
  });

  it("sees what a running tool has said", () => {
    const next = talks.subscribed(
      empty,
      answer({ runs: [{ runId: "r", mode: "snapshot", seq: 9, parts: [], progress: { c: ["one", "two"] } }] }),
    );
    expect(next.runs.r?.calls.c).toMatchObject({ state: "running", progress: { text: "one\ntwo" } });
  });
});

describe("what is on its way", () => {
  const outgoing: talks.Outgoing = { key: "k", parts: [{ type: "text", text: "hi" }], at: 1, state: "sending" };

  it("goes when it has arrived, whichever is heard first", () => {
    const sent = talks.said(empty, outgoing);
    const arrived = frame("chat.message", 1, { message: message("u", "user", "hi") });
    expect(all(talks.accepted(sent, "k", "r", false), arrived).outgoing).toEqual([]);
    expect(talks.accepted(all(sent, arrived), "k", "r", false).outgoing).toEqual([]);
  });

  it("waits for its turn, and a reload knows it still", () => {
    const queued = talks.accepted(talks.said(empty, outgoing), "k", "r", true);
    expect(queued.outgoing[0]?.state).toBe("queued");
    const next = talks.subscribed(
      empty,
      answer({ waiting: [message("u", "user", "hi")], runs: [{ runId: "r", mode: "snapshot", seq: 0, parts: [] }] }),
    );
    expect(next.outgoing).toMatchObject([{ runId: "r", state: "queued" }]);
    expect(talks.subscribed(queued, answer({ waiting: [message("u", "user", "hi")] })).outgoing).toHaveLength(1);
  });
});

it("a frame of the house is no frame of a run", () => {
  expect(talks.isRunFrame({ event: "server.shutdown", data: {} } as EventFrame)).toBe(false);
});
