// Elicitation forms: what the user has entered, and the values and validation errors that result from it.

import type { FieldShape, FormShape } from "../wire";

export type FieldInput = string | string[] | boolean;
export type FormInput = Record<string, FieldInput>;

export interface FormResult {
  values: Record<string, unknown>;
  errors: Record<string, string>;
}

/** Return the initial input: the default of each field. */
export function initialInput(form: FormShape): FormInput {
  return Object.fromEntries((form.fields ?? []).map((field) => [field.name, initialFieldInput(field)]));
}

function initialFieldInput({ kind, default: value, required }: FieldShape): FieldInput {
  if (kind === "choices") return Array.isArray(value) ? value.map(String) : [];
  if (kind === "boolean" && required) return value === true;
  return value === undefined || value === null ? "" : String(value);
}

/** Convert the input to values, with an error for each invalid field. Empty optional fields are left out. */
export function parseForm(form: FormShape, input: FormInput): FormResult {
  const result: FormResult = { values: {}, errors: {} };
  for (const field of form.fields ?? []) {
    const value = parseField(field, input[field.name] ?? "");
    const error = value === undefined ? (field.required ? "Required." : "") : validateField(field, value);
    if (error) result.errors[field.name] = error;
    else if (value !== undefined) result.values[field.name] = value;
  }
  return result;
}

function parseField({ kind, required }: FieldShape, input: FieldInput): unknown {
  if (typeof input === "boolean") return input;
  if (Array.isArray(input)) return input.length || required ? input : undefined;
  if (input.trim() === "") return undefined;
  if (kind === "number" || kind === "integer") return Number(input);
  return kind === "boolean" ? input === "true" : input;
}

function validateField({ kind, least, most, choices = [] }: FieldShape, value: unknown): string {
  if (kind === "number" && !Number.isFinite(value)) return "Enter a number.";
  if (kind === "integer" && !Number.isSafeInteger(value)) return "Enter a whole number.";
  if (kind === "choice" && !choices.some((choice) => choice.value === value)) return "Select one of the options.";
  const size = typeof value === "number" ? value : typeof value === "string" || Array.isArray(value) ? value.length : 0;
  const limit =
    least != null && size < least ? `at least ${least}` : most != null && size > most ? `at most ${most}` : "";
  if (!limit) return "";
  if (kind === "text") return `Enter ${limit} characters.`;
  return kind === "choices" ? `Select ${limit}.` : `Must be ${limit}.`;
}
