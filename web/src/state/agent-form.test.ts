import { expect, test } from "vitest";
import type { ToolShape } from "../wire";
import { checkAgentId, groupTools, readDraft, toAgentId } from "./agent-form";

test("an id is made from a name", () => {
  expect(toAgentId("  Élise's Helper! ")).toBe("elise-s-helper");
  expect(toAgentId("__x")).toBe("x");
});

test("an invalid, taken or reserved id is refused", () => {
  expect(checkAgentId("", [])).toBe("Enter an id.");
  expect(checkAgentId("a b", [])).toBe("Use letters, digits, - or _.");
  expect(checkAgentId("Archy", ["archy"])).toBe("An agent called archy exists.");
  expect(checkAgentId("new", [])).not.toBe("");
  expect(checkAgentId("archy-2", ["archy"])).toBe("");
});

test("a draft without tools has all of them", () => {
  expect(readDraft({ id: "a" }).tools).toEqual(["*"]);
  expect(readDraft({ id: "a", tools: [] }).tools).toEqual([]);
});

test("tools are grouped by their source", () => {
  const tools = ["zeta", "github/b", "bash", "github/a"].map((name) => ({ name }) as ToolShape);
  const names = groupTools(tools).map((group) => [group.name, group.tools.map((tool) => tool.name)]);
  expect(names).toEqual([
    ["Built in", ["bash", "zeta"]],
    ["github", ["github/a", "github/b"]],
  ]);
});
