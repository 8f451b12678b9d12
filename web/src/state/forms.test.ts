import { describe, expect, it } from "vitest";
import type { FieldShape, FormShape } from "../wire";
import { initialInput, parseForm } from "./forms";

const form = (...fields: FieldShape[]): FormShape => ({ asker: "a shop", message: "Which?", fields });

describe("elicitation forms", () => {
  it("start with the defaults and omit empty optional fields", () => {
    const requested = form(
      { name: "n", kind: "integer", default: 2 },
      { name: "t", kind: "text" },
      { name: "c", kind: "choices", choices: [{ value: "a" }] },
      { name: "b", kind: "boolean", default: false },
    );
    expect(initialInput(requested)).toEqual({ n: "2", t: "", c: [], b: "false" });
    expect(parseForm(requested, initialInput(requested))).toEqual({ values: { n: 2, b: false }, errors: {} });
  });
  it("report an error for each invalid field", () => {
    const requested = form(
      { name: "needed", kind: "text", required: true },
      { name: "short", kind: "text", least: 3 },
      { name: "whole", kind: "integer" },
      { name: "some", kind: "choices", choices: [{ value: "a" }, { value: "b" }], most: 1 },
      { name: "one", kind: "choice", choices: [{ value: "a" }] },
    );
    expect(parseForm(requested, { needed: " ", short: "ab", whole: "1.5", some: ["a", "b"], one: "z" }).errors).toEqual(
      {
        needed: "Required.",
        short: "Enter at least 3 characters.",
        whole: "Enter a whole number.",
        some: "Select at most 1.",
        one: "Select one of the options.",
      },
    );
  });
});
