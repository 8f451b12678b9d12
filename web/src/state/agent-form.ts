// The form of an agent: its values, their validation, and the names and groups of tools.

import type { AgentDraft, ToolShape } from "../wire";

export type AgentValues = Required<AgentDraft>;

export const EMPTY_AGENT: AgentValues = {
  id: "",
  name: "",
  description: "",
  model: "",
  fallbacks: [],
  effort: "",
  instructions: "",
  tools: [],
  role: "",
  handsOffTo: [],
};

export const AGENT_LABELS: Record<keyof AgentValues, string> = {
  id: "Id",
  name: "Name",
  description: "Description",
  model: "Model",
  fallbacks: "Fallback models",
  effort: "Effort",
  instructions: "Instructions",
  tools: "Tools",
  role: "Role",
  handsOffTo: "Hands off to",
};

export const ALL_TOOLS = "*";
const ID = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
/** The path of the form for a new agent. */
const RESERVED_ID = "new";

/** Return all values of a draft; fields that have their default are omitted on the wire. */
export function readDraft(draft: unknown): AgentValues {
  return { ...EMPTY_AGENT, tools: [ALL_TOOLS], ...(draft as AgentDraft) };
}

/** Return an id made of the letters and digits of a name. */
export function toAgentId(name: string): string {
  const ascii = name.normalize("NFKD").replace(/[\u0300-\u036f]/g, "");
  return ascii
    .toLowerCase()
    .replace(/[^a-z0-9_-]+/g, "-")
    .replace(/^[-_]+|-+$/g, "")
    .slice(0, 64);
}

/** Return what is wrong with an id; empty if it is valid. `others` are the ids of the other agents. */
export function checkAgentId(id: string, others: string[]): string {
  if (!id) return "Enter an id.";
  if (!ID.test(id)) return "Use letters, digits, - or _.";
  const taken = others.find((other) => other.toLowerCase() === id.toLowerCase());
  if (taken) return `An agent called ${taken} exists.`;
  return id === RESERVED_ID ? "This id is reserved. Choose another one." : "";
}

export interface ToolGroup {
  name: string;
  tools: ToolShape[];
}

/** Group tools by where they come from: built in, or the MCP server or plugin in their name. */
export function groupTools(tools: ToolShape[]): ToolGroup[] {
  const groups = new Map<string, ToolShape[]>();
  for (const tool of [...tools].sort((a, b) => a.name.localeCompare(b.name))) {
    const slash = tool.name.indexOf("/");
    const name = slash > 0 ? tool.name.slice(0, slash) : "Built in";
    groups.set(name, [...(groups.get(name) ?? []), tool]);
  }
  const order = (name: string) => (name === "Built in" ? "" : name);
  return [...groups]
    .map(([name, found]) => ({ name, tools: found }))
    .sort((a, b) => order(a.name).localeCompare(order(b.name)));
}
