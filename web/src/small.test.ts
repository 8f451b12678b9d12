import { describe, expect, it, vi } from "vitest";
import { lastDays, roundUp, stacked } from "./charts/series";
import { ticks, timelineOf } from "./charts/spans";
import { safeAddress } from "./markdown/links";
import { mended } from "./markdown/mend";
import { Backoff } from "./net/backoff";
import { tokenIn } from "./net/token";
import { pathOf, routeOf, VIEWS } from "./shell/route";
import { grouped } from "./shell/sessions";
import { Store } from "./state/store";
import { costOf, countOf, exactly, inOneLine, spanOf } from "./state/words";
import type { RunFound } from "./wire";

describe("what decides something is shown whole", () => {
  it("marks what cannot be seen", () => {
    const marks = exactly("a\u202eb\u200b\u00a0c\u0007")
      .filter((piece) => piece.hidden)
      .map((piece) => piece.text);
    expect(marks).toEqual(["U+202E", "U+200B", "U+00A0", "U+0007"]);
  });
  it("marks room that could hide something, and letters that look like ours", () => {
    expect(
      exactly(`a${" ".repeat(30)}b\n\n\n\nc`)
        .filter((piece) => piece.hidden)
        .map((piece) => piece.text),
    ).toEqual(["30 spaces", "3 empty lines"]);
    expect(exactly("p\u0430ypal")[1]).toEqual({ text: "\u0430 U+0430", hidden: true });
  });
  it("leaves ordinary text alone", () => {
    const text = 'for x in *.py; do\n\techo "$x – é 日本"\ndone';
    expect(exactly(text)).toEqual([{ text, hidden: false }]);
    expect(inOneLine("a\n b")).toBe("a ⏎ b");
  });
});

it("links lead only where a person may go", () => {
  expect(["https://a.b/c", "mailto:a@b.c"].map(safeAddress)).toEqual(["https://a.b/c", "mailto:a@b.c"]);
  for (const bad of [
    "javascript:x",
    " JAVASCRIPT:x",
    "data:text/html,x",
    "/c/x",
    "#token=x",
    "file:///etc/passwd",
    "blob:x",
    "java\tscript:x",
    "x",
  ])
    expect(safeAddress(bad)).toBeNull();
});

it("marks that are still open at the end of a growing answer are closed", () => {
  expect(mended("some **bold")).toBe("some **bold**");
  expect(mended("some `code")).toBe("some `code`");
  expect(mended("```py\nx = **y")).toBe("```py\nx = **y");
  expect(mended("a **b** c")).toBe("a **b** c");
});

it("many changes are one piece of news", () => {
  vi.useFakeTimers();
  const store = new Store(0, 62, () => performance.now());
  let news = 0;
  store.subscribe(() => void (news += 1));
  for (let number = 1; number <= 1000; number += 1) {
    store.set(number);
    vi.advanceTimersByTime(1);
  }
  vi.runAllTimers();
  expect(news).toBeLessThanOrEqual(17);
  expect(store.snapshot()).toBe(1000);
  vi.useRealTimers();
});

it("each try waits longer, up to a limit", () => {
  const backoff = new Backoff(() => 1);
  expect(Array.from({ length: 7 }, () => backoff.next())).toEqual([250, 500, 1000, 2000, 4000, 8000, 8000]);
  backoff.reset();
  expect(backoff.next()).toBe(250);
});

it("a token is taken from the fragment only", () => {
  expect(tokenIn("#token=abc")).toBe("abc");
  expect(tokenIn("#other=1&token=a%2Bb")).toBe("a+b");
  expect(["", "#", "#token=", "#/c/x"].map(tokenIn)).toEqual([null, null, null, null]);
});

it("every place has an address, and every address a place", () => {
  for (const view of VIEWS)
    for (const id of ["", "a/b ?#"]) expect(routeOf(pathOf({ view, id }))).toEqual({ view, id });
  expect(routeOf("/nowhere/%E0%A4%A")).toEqual({ view: "chat", id: "" });
});

it("sessions are grouped by day", () => {
  const now = new Date(2026, 5, 15, 12);
  const at = (day: number, month = 5) => ({
    sessionKey: `${month}.${day}`,
    label: "",
    agentId: "",
    archived: false,
    running: false,
    createdAt: 0,
    updatedAt: new Date(2026, month, day, 9).getTime(),
  });
  expect(grouped([at(15), at(14), at(10), at(20, 4), at(1, 0)], now).map(({ name }) => name)).toEqual([
    "Today",
    "Yesterday",
    "This week",
    "This month",
    "Earlier",
  ]);
});

it("numbers are told as people tell them", () => {
  expect([0.2, 12, 1500, 61_000, 3_720_000].map(spanOf)).toEqual([
    "< 1 ms",
    "12 ms",
    "1.5 s",
    "1 min 1 s",
    "1 h 2 min",
  ]);
  expect([999, 1500, 123_456, 2_000_000].map(countOf)).toEqual(["999", "1.5k", "123k", "2M"]);
  expect([0, 0.0012, 1.5].map(costOf)).toEqual(["$0", "$0.0012", "$1.50"]);
});

it("a turn is a picture of rounds, waits and calls", () => {
  const step = (seq: number, kind: string, at: number, more = {}) => ({ seq, kind, key: "k", at, ...more });
  const found = {
    run: { runId: "r", sessionKey: "s", agentId: "a", status: "done", createdAt: 0, endedAt: 100 },
    steps: [
      step(1, "accepted", 0),
      step(2, "reply", 10, { name: "m" }),
      step(3, "asked", 12, { name: "t", callId: "c" }),
      step(4, "answered", 50, { status: "deny", by: "me" }),
      step(5, "intent", 51, { name: "t", callId: "c" }),
      step(6, "outcome", 60, { callId: "c", status: "error", error: "timeout" }),
      step(7, "reply", 90),
      step(8, "ended", 100),
    ],
  } as unknown as RunFound;
  const { spans, to } = timelineOf(found, 1000);
  expect(to).toBe(100);
  expect(spans.map(({ kind, from, to, state }) => [kind, from, to, state])).toEqual([
    ["model", 0, 10, "done"],
    ["wait", 12, 50, "refused"],
    ["call", 51, 60, "failed"],
    ["model", 60, 90, "done"],
  ]);
  expect(ticks(100)).toEqual([0, 20, 40, 60, 80, 100]);
});

it("points become stacks, the largest first, with the small ones together", () => {
  const days = lastDays(2, Date.UTC(2026, 0, 2));
  expect(days).toEqual(["2026-01-01", "2026-01-02"]);
  const points = ["a", "b", "c", "d", "e", "f", "g"].map((name, place) => ({
    name,
    day: "2026-01-01",
    value: 7 - place,
  }));
  const stacks = stacked(points, days);
  expect(stacks.names).toEqual(["a", "b", "c", "d", "e", "others"]);
  expect(stacks.values).toEqual([
    [7, 6, 5, 4, 3, 3],
    [0, 0, 0, 0, 0, 0],
  ]);
  expect([0, 3, 21, 130].map(roundUp)).toEqual([1, 4, 30, 200]);
});
