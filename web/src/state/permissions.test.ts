import { expect, test } from "vitest";
import type { PolicySimulated } from "../wire";
import { describeSimulation, describeWidening, flattenCells, listChanges } from "./permissions";

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
