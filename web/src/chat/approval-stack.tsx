// Approvals of the same kind of call that wait together: allow the selected ones or deny all of them at once.

import { Button } from "antd";
import { useState, useSyncExternalStore } from "react";
import { useFeedback } from "../components/feedback";
import { useAppState, useClient } from "../state/hooks";
import { Store } from "../state/store";
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

/** Approvals of stacks that "Allow" leaves out, by their id. All others are selected. */
const leftOut = new Store<ReadonlySet<string>>(new Set(), 0);

const useLeftOut = (): ReadonlySet<string> => useSyncExternalStore(leftOut.subscribe, leftOut.snapshot);

function toggle(approvalId: string): void {
  const ids = new Set(leftOut.current);
  if (!ids.delete(approvalId)) ids.add(approvalId);
  leftOut.set(ids);
  leftOut.flush();
}

/** The stack of an approval, if others wait with it. */
function useStack({ approvalId }: ApprovalShape): ApprovalShape[] | undefined {
  const { approvals } = useAppState();
  return stackApprovals(approvals).find(
    (stack) => stack.length > 1 && stack.some((each) => each.approvalId === approvalId),
  );
}

/** Selects a card of a stack; the key x does the same. Nothing for a card that stands alone. */
export function StackCheckbox({ approval, label }: { approval: ApprovalShape; label: string }) {
  const stack = useStack(approval);
  const without = useLeftOut();
  if (!stack) return null;
  const { approvalId } = approval;
  return (
    <label className="stack-checkbox">
      <input
        type="checkbox"
        aria-label={`Select: ${label}`}
        aria-keyshortcuts="x"
        checked={!without.has(approvalId)}
        onChange={() => toggle(approvalId)}
      />
    </label>
  );
}

/** In a chat, above the first card of a stack. All its cards are on the page. */
export function StackBar({ approval }: { approval: ApprovalShape }) {
  const stack = useStack(approval);
  return stack?.[0]?.approvalId === approval.approvalId ? <StackActions stack={stack} /> : null;
}

/** Allow the selected approvals of a stack or deny all of them, as they are shown. */
export function StackActions({ stack }: { stack: readonly ApprovalShape[] }) {
  const client = useClient();
  const { agents, principal, status } = useAppState();
  const { message: toast } = useFeedback();
  const [busy, setBusy] = useState(false);
  const without = useLeftOut();
  const selected = stack.filter(({ approvalId }) => !without.has(approvalId));
  const count = stack.length;
  const resolve = async (shown: readonly ApprovalShape[], decision: "allow-once" | "deny") => {
    setBusy(true);
    try {
      const failed = [...(await client.resolveApprovals(shown, decision)).values()];
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
      <Button
        type="primary"
        disabled={disabled || selected.length === 0}
        onClick={() => void resolve(selected, "allow-once")}
      >
        {selected.length === count ? `Allow all ${count}` : `Allow ${selected.length} of ${count}`}
      </Button>
      <Button danger disabled={disabled} onClick={() => void resolve(stack, "deny")}>
        Deny all
      </Button>
    </div>
  );
}
