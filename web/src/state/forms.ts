// A form that a tool wants filled in: what is written in its fields, and the values that this makes.

import type { FieldShape, FormShape } from "../wire";

export type Written = Record<string, string | string[] | boolean>;

/** What stands in the fields at first: what is suggested. */
export function startOf(form: FormShape): Written {
  return Object.fromEntries((form.fields ?? []).map((field) => [field.name, first(field)]));
}

function first({ kind, default: given, required }: FieldShape): string | string[] | boolean {
  if (kind === "choices") return Array.isArray(given) ? given.map(String) : [];
  if (kind === "boolean" && required) return given === true;
  return given === undefined || given === null ? "" : String(given);
}

/** The values, and for each field that has none that fits, why. What is left empty and not needed is left out. */
export function valuesOf(
  form: FormShape,
  written: Written,
): { values: Record<string, unknown>; wrong: Record<string, string> } {
  const values: Record<string, unknown> = {};
  const wrong: Record<string, string> = {};
  for (const field of form.fields ?? []) {
    const value = valueOf(field, written[field.name] ?? "");
    const why = value === undefined ? (field.required ? "It is needed." : "") : misfit(field, value);
    if (why) wrong[field.name] = why;
    else if (value !== undefined) values[field.name] = value;
  }
  return { values, wrong };
}

function valueOf({ kind, required }: FieldShape, written: Written[string]): unknown {
  if (typeof written === "boolean") return written;
  if (Array.isArray(written)) return written.length || required ? written : undefined;
  if (written.trim() === "") return undefined;
  if (kind === "number" || kind === "integer") return Number(written);
  return kind === "boolean" ? written === "true" : written;
}

function misfit({ kind, least, most, choices = [] }: FieldShape, value: unknown): string {
  const size = typeof value === "number" ? value : typeof value === "string" || Array.isArray(value) ? value.length : 0;
  if (kind === "number" && !Number.isFinite(value)) return "It is no number.";
  if (kind === "integer" && !Number.isSafeInteger(value)) return "It is no whole number.";
  if (kind === "choice" && !choices.some((choice) => choice.value === value)) return "It is none of these.";
  const what = kind === "text" ? " characters" : kind === "choices" ? " of them" : "";
  if (least != null && size < least) return `At least ${least}${what}.`;
  if (most != null && size > most) return `At most ${most}${what}.`;
  return "";
}
