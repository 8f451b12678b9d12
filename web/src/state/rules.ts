// Rules of the policy in plain words.

const CELL = /^[^:]*: tools\.(.+), (yes|no|ask) for (.+)$/;
const NO_CELL = /^[^:]*: tools\.(.+) has no entry for (.+)$/;
const GRANT = /^[^:]*: grants\.(.+)$/;
const COMMAND = /^[^:]*: commands\[\d+\], (.+)$/;

const VERBS: Record<string, string> = { yes: "is allowed", no: "is not allowed", ask: "needs approval" };

/** Describe a rule that the policy quotes, such as "policy.toml: tools.bash, ask for *". */
export function describeRule(rule: string): string {
  const cell = CELL.exec(rule);
  if (cell) return `${toolName(cell[1] ?? "")} ${VERBS[cell[2] ?? ""]} for ${subject(cell[3] ?? "")}`;
  const missing = NO_CELL.exec(rule);
  if (missing) return `No rule allows ${toolName(missing[1] ?? "")} for ${missing[2]}`;
  const grant = GRANT.exec(rule);
  if (grant) return `Permission granted to ${subject(grant[1] ?? "")}`;
  const command = COMMAND.exec(rule);
  if (command) return `Commands like “${command[1]}” are allowed`;
  return rule.replace(/^[^:\s]+: /, "");
}

const toolName = (entry: string): string => (entry.endsWith("/*") ? `Every tool of ${entry.slice(0, -2)}` : entry);

const subject = (name: string): string => (name === "*" ? "every agent" : name);
