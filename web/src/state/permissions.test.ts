import { expect, test } from "vitest";
import type { PolicySimulated } from "../wire";
import { describeSimulation, describeWidening, flattenCells, listChanges, safetyChanges } from "./permissions";

const result = (counts: Partial<PolicySimulated>): PolicySimulated => ({
  allow: 0,
  ask: 0,
  deny: 0,
  checked: 9,
  calls: [],
  wider: [],
  effective: {},
  ...counts,
});

test("changes are set, replaced and removed cells", () => {
  const saved = flattenCells({ bash: { "*": "ask", ops: "yes" } });
  expect(listChanges(saved, { "bash *": "no", "github/x archy": "yes" })).toEqual([
    { tool: "bash", subject: "*", cell: "no" },
    { tool: "bash", subject: "ops", cell: null },
    { tool: "github/x", subject: "archy", cell: "yes" },
  ]);
  expect(listChanges(saved, { ...saved })).toEqual([]);
});

test("the effect on recorded calls is described in a sentence", () => {
  expect(describeSimulation(result({}), 7)).toBe("No recorded calls are affected.");
  expect(describeSimulation(result({ ask: 12, deny: 2 }), 7)).toBe(
    "In the last 7 days 12 calls would now ask, 2 would be denied.",
  );
  expect(describeSimulation(result({ deny: 1 }), 1)).toBe("In the last 1 day 1 call would be denied.");
});

test("widening names the calls, or the permissions if there are none", () => {
  expect(describeWidening(result({ allow: 14 }), String)).toBe(
    "14 calls that needed approval or were denied would run without asking.",
  );
  const wider = [{ tool: "bash", subject: "*", cell: "yes" as const }];
  expect(describeWidening(result({ wider }), () => "Everyone")).toBe("This allows more than now: bash for Everyone.");
});

test("a safety level changes only what differs from it", () => {
  const tool = (name: string, pure = false, asks = false) => ({ name, source: "builtin", pure, asks });
  const tools = [tool("bash", false, true), tool("file_write"), tool("file_read", true), tool("post_to_x")];
  const cell = (value: "yes" | "ask" | "no") => ({ "*": { cell: value, rule: "" } });
  const effective = { bash: cell("yes"), file_write: cell("ask"), file_read: cell("yes"), post_to_x: cell("no") };
  const policy = { tools, effective, cells: {} };
  expect(safetyChanges("ask", policy)).toEqual([]);
  expect(safetyChanges("everything", policy)).toEqual([{ tool: "file_read", subject: "*", cell: "ask" }]);
  expect(safetyChanges("read-only", policy)).toEqual([
    { tool: "bash", subject: "*", cell: "no" },
    { tool: "file_write", subject: "*", cell: "no" },
  ]);
  const readOnly = {
    tools,
    effective: { ...effective, bash: cell("no"), file_write: cell("no") },
    cells: { bash: { "*": "no" as const }, file_write: { "*": "no" as const } },
  };
  expect(safetyChanges("read-only", readOnly)).toEqual([]);
  expect(safetyChanges("ask", readOnly)).toEqual([
    { tool: "bash", subject: "*", cell: "ask" },
    { tool: "file_write", subject: "*", cell: "ask" },
  ]);
});
