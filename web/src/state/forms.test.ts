import { describe, expect, it } from "vitest";
import type { FieldShape, FormShape } from "../wire";
import { startOf, valuesOf } from "./forms";

const form = (...fields: FieldShape[]): FormShape => ({ asker: "a shop", message: "Which?", fields });

describe("a form", () => {
  it("begins with what is suggested, and leaves out what is empty", () => {
    const asked = form(
      { name: "n", kind: "integer", default: 2 },
      { name: "t", kind: "text" },
      { name: "c", kind: "choices", choices: [{ value: "a" }] },
      { name: "b", kind: "boolean", default: false },
    );
    expect(startOf(asked)).toEqual({ n: "2", t: "", c: [], b: "false" });
    expect(valuesOf(asked, startOf(asked))).toEqual({ values: { n: 2, b: false }, wrong: {} });
  });
  it("says of each field why it does not fit", () => {
    const asked = form(
      { name: "needed", kind: "text", required: true },
      { name: "short", kind: "text", least: 3 },
      { name: "whole", kind: "integer" },
      { name: "some", kind: "choices", choices: [{ value: "a" }, { value: "b" }], most: 1 },
      { name: "one", kind: "choice", choices: [{ value: "a" }] },
    );
    expect(valuesOf(asked, { needed: " ", short: "ab", whole: "1.5", some: ["a", "b"], one: "z" }).wrong).toEqual({
      needed: "It is needed.",
      short: "At least 3 characters.",
      whole: "It is no whole number.",
      some: "At most 1 of them.",
      one: "It is none of these.",
    });
  });
});
