// Approvals of the same kind of call that wait together: allow or deny all of them at once.

import { Button } from "antd";
import { useState } from "react";
import { useFeedback } from "../components/feedback";
import { useAppState, useClient } from "../state/hooks";
import { toSafeLine } from "../state/unicode-safety";
import type { AgentShape, ApprovalShape } from "../wire";

/** Approvals stack if the same agent asks for the same tool with the same risk in one turn. A form stands alone. */
const stackKey = ({ runId, agentId, toolName, kind, risk, sandbox }: ApprovalShape): string =>
  JSON.stringify([runId, agentId, toolName, kind, risk, sandbox]);

/** Group approvals into stacks, each at the place of its first approval. */
export function stackApprovals(approvals: readonly ApprovalShape[]): ApprovalShape[][] {
  const stacks = new Map<string, ApprovalShape[]>();
  for (const approval of approvals) {
    const key = approval.form ? approval.approvalId : stackKey(approval);
    stacks.set(key, [...(stacks.get(key) ?? []), approval]);
  }
  return [...stacks.values()];
}

/** Say what an agent wants to do several times. */
export function stackTitle([first, ...others]: readonly ApprovalShape[], agents: readonly AgentShape[]): string {
  const { agentId, kind, toolName } = first as ApprovalShape;
  const who = toSafeLine(agents.find(({ id }) => id === agentId)?.name || agentId || "The agent");
  const count = others.length + 1;
  if (kind === "command") return `${who} wants to run ${count} commands`;
  if (kind === "code") return `${who} wants to run code ${count} times`;
  if (kind === "file") return `${who} wants to change ${count} files`;
  return `${who} wants to use ${toSafeLine(toolName)} ${count} times`;
}

/** In a chat, above the first card of a stack. All its cards are on the page. */
export function StackBar({ approval }: { approval: ApprovalShape }) {
  const { approvals } = useAppState();
  const stack = stackApprovals(approvals).find((each) =>
    each.some(({ approvalId }) => approvalId === approval.approvalId),
  );
  if (!stack || stack.length < 2 || stack[0]?.approvalId !== approval.approvalId) return null;
  return <StackActions stack={stack} />;
}

/** Allow or deny every approval of a stack, as it is shown. */
export function StackActions({ stack }: { stack: readonly ApprovalShape[] }) {
  const client = useClient();
  const { agents, principal, status } = useAppState();
  const { message: toast } = useFeedback();
  const [busy, setBusy] = useState(false);
  const count = stack.length;
  const resolve = async (decision: "allow-once" | "deny") => {
    setBusy(true);
    try {
      const failed = [...(await client.resolveApprovals(stack, decision)).values()];
      const left = failed.length === 1 ? "1 request was not answered" : `${failed.length} requests were not answered`;
      if (failed.length > 0) toast.warning(`${left}: ${failed[0]}`);
    } catch (error) {
      toast.warning((error as Error).message);
    }
    setBusy(false);
  };
  const disabled = busy || status !== "online" || !principal?.scopes.includes("approve");
  return (
    <div className="approval-stack-bar">
      <strong>{stackTitle(stack, agents)}</strong>
      <span className="spacer" />
      <Button type="primary" size="small" disabled={disabled} onClick={() => void resolve("allow-once")}>
        Allow all {count}
      </Button>
      <Button danger size="small" disabled={disabled} onClick={() => void resolve("deny")}>
        Deny all
      </Button>
    </div>
  );
}
