import { expect, test } from "vitest";
import { parseDiff } from "./diff";
import { describeRule } from "./rules";

const DIFF =
  "notes.md is protected\n--- notes.md\n+++ notes.md\n@@ -3,3 +3,4 @@\n one\n-buy milk now\n+buy tea now\n+@@ -1 +1 @@\n two";

test("a unified diff becomes rows with line numbers and changed words", () => {
  const diff = parseDiff(DIFF);
  expect(diff).toMatchObject({ notes: ["notes.md is protected"], path: "notes.md", added: 2, removed: 1 });
  expect(diff?.hunks).toEqual([
    [
      { kind: "same", before: { number: 3, text: "one" }, after: { number: 3, text: "one" } },
      {
        kind: "change",
        before: { number: 4, text: "buy milk now", changed: [4, 8] },
        after: { number: 4, text: "buy tea now", changed: [4, 7] },
      },
      { kind: "change", before: undefined, after: { number: 5, text: "@@ -1 +1 @@" } },
      { kind: "same", before: { number: 5, text: "two" }, after: { number: 6, text: "two" } },
    ],
  ]);
});

test("a text that is not exactly one diff is not parsed, so that no line is hidden", () => {
  expect(parseDiff("-milk\n+tea")).toBeUndefined();
  expect(parseDiff(`${DIFF}\n… 12 more characters are not shown`)).toBeUndefined();
  expect(parseDiff(DIFF.replace("\n two", ""))).toBeUndefined();
  expect(parseDiff("")).toBeUndefined();
});

test("rules are described in plain words", () => {
  expect(describeRule("policy.toml: tools.bash, ask for *")).toBe("bash needs approval for every agent");
  expect(describeRule("policy.toml: tools.github/*, no for finance")).toBe(
    "Every tool of github is not allowed for finance",
  );
  expect(describeRule("policy.toml: tools.bash has no entry for agent 'x'")).toBe("No rule allows bash for agent 'x'");
  expect(describeRule("policy.toml: grants.archy")).toBe("Permission granted to archy");
  expect(describeRule("policy.toml: commands[2], git status")).toBe("Commands like “git status” are allowed");
  expect(describeRule("policy.toml: wipe has side effects, and no entry allows it")).toBe(
    "wipe has side effects, and no entry allows it",
  );
});
