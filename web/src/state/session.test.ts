import { describe, expect, it } from "vitest";
import type { EventFrame } from "../net/connection";
import type { MessageShape, Subscribed } from "../wire";
import * as sessions from "./session";

type RunFrame = sessions.RunFrame;

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
const applyAll = (state: sessions.SessionState, ...frames: RunFrame[]): sessions.SessionState =>
  frames.reduce(sessions.applyFrame, state);
const session = { sessionKey: "s", label: "", agentId: "", archived: false, running: true, createdAt: 1, updatedAt: 1 };
const response = (part: Partial<Subscribed>): Subscribed => ({ session, messages: [], runs: [], ...part });
const empty = sessions.emptySession("s");

describe("applyFrame", () => {
  it("joins deltas and replaces them with the stored message", () => {
    const state = applyAll(
      empty,
      frame("chat.message", 1, { message: message("u", "user", "hi") }),
      frame("chat.delta", 2, { text: "Hel" }),
      frame("chat.delta", 3, { text: "lo" }),
    );
    expect(state.runs.r?.text).toBe("Hello");
    const kept = applyAll(
      state,
      frame("chat.message", 4, { message: message("a", "assistant", "Hello") }),
      frame("chat.final", 5, { usage: { inputTokens: 1, outputTokens: 2 } }),
    );
    expect(kept.messages.map((each) => each.id)).toEqual(["u", "a"]);
    expect(kept.runs.r).toMatchObject({ text: "", status: "done", seq: 5 });
  });

  it("removes a pending message when it enters a running turn", () => {
    const pending = { key: "k", parts: [], at: 1, steer: true, runId: "s2", state: "queued" as const };
    const steering = { ...message("v", "user", "also"), metadata: { steering_run: "s2" } };
    const state = applyAll(sessions.addPending(empty, pending), frame("chat.message", 1, { message: steering }));
    expect(state.pending).toEqual([]);
    expect(state.messages.map((each) => each.id)).toEqual(["v"]);
  });

  it("ignores a frame that was already applied", () => {
    const once = applyAll(empty, frame("chat.delta", 1, { text: "a" }));
    expect(applyAll(once, frame("chat.delta", 1, { text: "a" }))).toBe(once);
  });

  it("discards the streamed output on a reset and keeps stored messages", () => {
    const state = applyAll(
      empty,
      frame("chat.message", 1, { message: message("a", "assistant", "kept") }),
      frame("chat.reasoning", 2, { text: "hm" }),
      frame("chat.delta", 3, { text: "half" }),
      frame("chat.reset", 512, { attempt: 1 }),
      frame("chat.delta", 513, { text: "whole" }),
    );
    expect(state.runs.r).toMatchObject({ text: "whole", reasoning: "", seq: 513 });
    expect(state.messages).toHaveLength(1);
  });

  it("reports a gap in the sequence unless the frame is a reset", () => {
    const state = applyAll(empty, frame("chat.delta", 1, { text: "a" }));
    expect(sessions.hasGapBefore(state, frame("chat.delta", 2))).toBe(false);
    expect(sessions.hasGapBefore(state, frame("chat.delta", 4))).toBe(true);
    expect(sessions.hasGapBefore(state, frame("chat.reset", 512))).toBe(false);
  });

  it("tracks a tool call from its approval to its result", () => {
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
    let state = applyAll(
      empty,
      frame("tool.call", 1, { toolCallId: "c", name: "t", arguments: {} }),
      frame("exec.approval_request", 2, asked),
    );
    expect(state.runs.r?.calls.c).toMatchObject({ status: "needs-approval", approval: { approvalId: "q" } });
    state = applyAll(
      state,
      frame("approval.resolved", 3, { approvalId: "q", decision: "allow-once", by: "me" }),
      frame("tool.progress", 4, { toolCallId: "c", message: "1 of 2" }),
    );
    expect(state.runs.r?.calls.c).toMatchObject({
      status: "running",
      approval: undefined,
      by: "me",
      progress: { text: "1 of 2", truncated: false },
    });
    state = applyAll(
      state,
      frame("tool.result", 5, {
        toolCallId: "c",
        name: "t",
        status: "error",
        result: "no",
        error: "timeout",
        durationMs: 3,
      }),
    );
    expect(state.runs.r?.calls.c).toMatchObject({ status: "error", error: "timeout", durationMs: 3 });
  });

  it("keeps the partial text of a cancelled run", () => {
    const state = applyAll(
      empty,
      frame("chat.delta", 1, { text: "half" }),
      frame("chat.final", 2, { usage: {}, cancelled: true }),
    );
    expect(state.runs.r).toMatchObject({ status: "cancelled", text: "half" });
  });
});

describe("applySubscription", () => {
  it("resumes open runs from their last sequence number", () => {
    const state = applyAll(
      empty,
      frame("chat.delta", 1, { text: "a" }),
      frame("chat.delta", 1, { text: "b" }, "other"),
      frame("chat.error", 2, { message: "x", kind: "k" }, "other"),
    );
    expect(sessions.runPositions(state)).toEqual({ r: 1 });
  });

  it("adds missed messages once", () => {
    const state = { ...empty, messages: [message("1", "user", "a", "r", 1)], loaded: true };
    const next = sessions.applySubscription(
      state,
      response({ messages: [message("1", "user", "a", "r", 1), message("2", "assistant", "b", "r", 2)] }),
    );
    expect(next.messages.map((each) => each.id)).toEqual(["1", "2"]);
  });

  it("restores an unknown run from a snapshot with its pending approval", () => {
    const approval = {
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
    const next = sessions.applySubscription(
      empty,
      response({
        runs: [
          {
            runId: "r",
            mode: "snapshot",
            seq: 7,
            parts: [{ type: "text", text: "so far" }],
            pendingApprovals: [approval],
          },
        ],
      }),
    );
    expect(next.runs.r).toMatchObject({ seq: 7, text: "so far", calls: { c: { status: "needs-approval" } } });
    expect(applyAll(next, frame("chat.delta", 8, { text: "!" })).runs.r?.text).toBe("so far!");
  });

  it("drops open runs that the gateway does not know and applies outcomes", () => {
    const state = applyAll(empty, frame("chat.delta", 1, { text: "a" }));
    const next = sessions.applySubscription(
      state,
      response({ outcomes: [{ runId: "x", status: "failed", error: "why" }] }),
    );
    expect(next.runs.r).toBeUndefined();
    expect(next.runs.x).toMatchObject({ status: "failed", error: "why" });
  });

  it("restores the partial text of cancelled runs, also from history pages", () => {
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
    const stopped = { status: "cancelled", text: "half", reasoning: "hm" };
    expect(sessions.applySubscription(empty, response({ outcomes })).runs.x).toMatchObject(stopped);
    expect(sessions.prependHistory(empty, { messages: [], hasMore: false, outcomes }).runs.x).toMatchObject(stopped);
  });

  it("replays missed frames of a cancelled run once, although its outcome is also sent", () => {
    const state = applyAll(empty, frame("chat.delta", 1, { text: "ha" }));
    const outcomes = [{ runId: "r", status: "cancelled" as const, parts: [{ type: "text" as const, text: "half" }] }];
    const next = sessions.applySubscription(
      state,
      response({ outcomes, runs: [{ runId: "r", mode: "replay", seq: 3 }] }),
    );
    expect(
      applyAll(next, frame("chat.delta", 2, { text: "lf" }), frame("chat.final", 3, { usage: {}, cancelled: true }))
        .runs.r,
    ).toMatchObject({ status: "cancelled", text: "half" });
  });

  it("restores the output of a running tool", () => {
    const next = sessions.applySubscription(
      empty,
      response({ runs: [{ runId: "r", mode: "snapshot", seq: 9, parts: [], progress: { c: ["one", "two"] } }] }),
    );
    expect(next.runs.r?.calls.c).toMatchObject({ status: "running", progress: { text: "one\ntwo" } });
  });
});

describe("pending messages", () => {
  const pending: sessions.PendingMessage = { key: "k", parts: [{ type: "text", text: "hi" }], at: 1, state: "sending" };

  it("are removed once delivered, whether the frame or the response arrives first", () => {
    const sent = sessions.addPending(empty, pending);
    const arrived = frame("chat.message", 1, { message: message("u", "user", "hi") });
    expect(applyAll(sessions.markAccepted(sent, "k", "r", false), arrived).pending).toEqual([]);
    expect(sessions.markAccepted(applyAll(sent, arrived), "k", "r", false).pending).toEqual([]);
  });

  it("stay queued after a reload", () => {
    const queued = sessions.markAccepted(sessions.addPending(empty, pending), "k", "r", true);
    expect(queued.pending[0]?.state).toBe("queued");
    const next = sessions.applySubscription(
      empty,
      response({ waiting: [message("u", "user", "hi")], runs: [{ runId: "r", mode: "snapshot", seq: 0, parts: [] }] }),
    );
    expect(next.pending).toMatchObject([{ runId: "r", state: "queued" }]);
    expect(
      sessions.applySubscription(queued, response({ waiting: [message("u", "user", "hi")] })).pending,
    ).toHaveLength(1);
  });
});

it("server events are not run frames", () => {
  expect(sessions.isRunFrame({ event: "server.shutdown", data: {} } as EventFrame)).toBe(false);
});
