// Permissions as a form: cells by tool and subject, the changes to save, and what they mean.

import type { CellChange, PolicyCell, PolicyResult, PolicySimulated, PolicyTool } from "../wire";

export type Cell = PolicyCell["cell"];
/** Cells that are set, by `cellKey`. */
export type CellValues = Record<string, Cell>;

export const EVERYONE = "*";
const SEPARATOR = " ";

/** Names of tools and subjects contain no spaces. */
export const cellKey = (tool: string, subject: string): string => `${tool}${SEPARATOR}${subject}`;

export function flattenCells(cells: Record<string, Record<string, Cell>>): CellValues {
  return Object.fromEntries(
    Object.entries(cells).flatMap(([tool, row]) =>
      Object.entries(row).map(([subject, cell]) => [cellKey(tool, subject), cell]),
    ),
  );
}

/** Return the changes that turn one set of cells into another. */
export function listChanges(saved: CellValues, value: CellValues): CellChange[] {
  const keys = [...new Set([...Object.keys(saved), ...Object.keys(value)])].filter((key) => saved[key] !== value[key]);
  return keys.map((key) => {
    const [tool = "", subject = ""] = key.split(SEPARATOR);
    return { tool, subject, cell: value[key] ?? null };
  });
}

export function describeCell(cell: Cell, tool: Pick<PolicyTool, "asks">): string {
  if (cell === "yes") return tool.asks ? "Tool asks" : "Allow";
  return cell === "ask" ? "Ask" : "Deny";
}

const plural = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** Say what changes would have meant for the recorded calls. */
export function describeSimulation({ allow, ask, deny }: PolicySimulated, days: number): string {
  const parts = [
    ask > 0 ? `${plural(ask, "call")} would now ask` : "",
    deny > 0 ? `${ask > 0 ? deny : plural(deny, "call")} would be denied` : "",
    allow > 0 ? `${ask + deny > 0 ? allow : plural(allow, "call")} would run without asking` : "",
  ].filter(Boolean);
  if (parts.length === 0) return "No recorded calls are affected.";
  return `In the last ${plural(days, "day")} ${parts.join(", ")}.`;
}

/** How careful agents are, as the set-up asks. */
export type SafetyLevel = "ask" | "everything" | "read-only";

/** Tools that run commands or change files. */
const CHANGING = ["bash", "code_interpreter", "file_write", "file_edit"];

/** Return the changes of everyone's permissions that make a level apply; none if it applies already. */
export function safetyChanges(level: SafetyLevel, policy: Pick<PolicyResult, "tools" | "effective" | "cells">) {
  return policy.tools.flatMap((tool): CellChange[] => {
    const now = policy.effective[tool.name]?.[EVERYONE]?.cell;
    const denied = policy.cells[tool.name]?.[EVERYONE] === "no";
    const cell = now && safeCell(level, tool, now, denied);
    return cell && cell !== now ? [{ tool: tool.name, subject: EVERYONE, cell }] : [];
  });
}

/** `denied` if it is denied by a cell of its own: a tool that is denied without one needs more than a level. */
function safeCell(level: SafetyLevel, tool: PolicyTool, now: Cell, denied: boolean): Cell {
  if (level === "everything") return now === "no" || tool.asks ? now : "ask";
  if (tool.pure) return now === "ask" ? "yes" : now;
  if (level === "read-only") return "no";
  if (denied) return "ask";
  return now === "yes" && CHANGING.includes(tool.name) && !tool.asks ? "ask" : now;
}

/** Say what allowing more means, for the confirmation. */
export function describeWidening({ allow, wider }: PolicySimulated, name: (subject: string) => string): string {
  if (allow > 0)
    return `${plural(allow, "call")} that needed approval or ${allow === 1 ? "was" : "were"} denied would run without asking.`;
  const names = wider.map(({ tool, subject }) => `${tool} for ${name(subject)}`);
  return `This allows more than now: ${names.slice(0, 5).join(", ")}${names.length > 5 ? ", …" : ""}.`;
}
