import { describe, expect, it, vi } from "vitest";
import { formatCost, formatCount, formatDuration, formatIdentifier, formatToolName, toSentence } from "./format";
import { Store } from "./store";
import { splitReorderedText, splitUnsafeText, toSafeLine } from "./unicode-safety";

describe("unsafe text", () => {
  const unsafePieces = (text: string) =>
    splitUnsafeText(text)
      .filter((piece) => piece.unsafe)
      .map((piece) => piece.text);

  it("spells out invisible characters", () => {
    expect(unsafePieces("a\u202eb\u200b\u00a0c\u0007")).toEqual(["U+202E", "U+200B", "U+00A0", "U+0007"]);
  });
  it("spells out long whitespace and look-alike letters", () => {
    expect(unsafePieces(`a${" ".repeat(30)}b\n\n\n\nc`)).toEqual(["30 spaces", "3 empty lines"]);
    expect(splitUnsafeText("p\u0430ypal")[1]).toEqual({ text: "\u0430 U+0430", unsafe: true });
  });
  it("spells out only what reorders or hides in a text that is read", () => {
    const text = `p\u0430ypal \u{1f468}\u200d\u{1f469}\ufe0f \u00a0${" ".repeat(30)}\u05e9\u05dc\u05d5\u05dd`;
    expect(splitReorderedText(text)).toEqual([{ text, unsafe: false }]);
    const unsafe = splitReorderedText("a\u202eb\u2066c\u200bd\u001be\u{e0041}\n\tf\r").filter((piece) => piece.unsafe);
    expect(unsafe.map((piece) => piece.text)).toEqual(["U+202E", "U+2066", "U+200B", "U+001B", "U+E0041"]);
  });
  it("leaves ordinary text unchanged", () => {
    const text = 'for x in *.py; do\n\techo "$x – é 日本"\ndone';
    expect(splitUnsafeText(text)).toEqual([{ text, unsafe: false }]);
    expect(toSafeLine("a\n b")).toBe("a ⏎ b");
  });
});

it("durations, counts, costs and identifiers are formatted for people", () => {
  expect([0.2, 12, 1500, 61_000, 3_720_000].map(formatDuration)).toEqual([
    "< 1 ms",
    "12 ms",
    "1.5 s",
    "1 min 1 s",
    "1 h 2 min",
  ]);
  expect([999, 1500, 123_456, 2_000_000].map(formatCount)).toEqual(["999", "1.5k", "123k", "2M"]);
  expect([0, 0.0012, 1.5].map(formatCost)).toEqual(["$0", "$0.0012", "$1.50"]);
  expect(["not_found", "mcp-approval"].map(formatIdentifier)).toEqual(["Not found", "MCP approval"]);
  const names = ["github__create_issue", "github/create__issue", "file_write", "__main__"];
  expect(names.map(formatToolName)).toEqual(["github/create_issue", "github/create__issue", "file_write", "__main__"]);
  expect(["the key is not valid", "example.org is down", "max_tokens is missing"].map(toSentence)).toEqual([
    "The key is not valid",
    "example.org is down",
    "max_tokens is missing",
  ]);
});

it("a store throttles notifications and ends with the latest value", () => {
  vi.useFakeTimers();
  const store = new Store(0, 62, () => performance.now());
  let notifications = 0;
  store.subscribe(() => {
    notifications += 1;
  });
  for (let value = 1; value <= 1000; value += 1) {
    store.set(value);
    vi.advanceTimersByTime(1);
  }
  vi.runAllTimers();
  expect(notifications).toBeLessThanOrEqual(17);
  expect(store.snapshot()).toBe(1000);
  vi.useRealTimers();
});
