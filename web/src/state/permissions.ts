// Permissions as a form: cells by tool and subject, the changes to save, and what they mean.

import type { CellChange, PolicyCell, PolicySimulated, PolicyTool } from "../wire";

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

/** Say what allowing more means, for the confirmation. */
export function describeWidening({ allow, wider }: PolicySimulated, name: (subject: string) => string): string {
  if (allow > 0)
    return `${plural(allow, "call")} that needed approval or ${allow === 1 ? "was" : "were"} denied would run without asking.`;
  const names = wider.map(({ tool, subject }) => `${tool} for ${name(subject)}`);
  return `This allows more than now: ${names.slice(0, 5).join(", ")}${names.length > 5 ? ", …" : ""}.`;
}
