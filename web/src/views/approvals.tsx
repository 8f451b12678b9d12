// Pending approvals of all sessions: soonest expiry first, those of one turn in a stack.

import { SafetyCertificateOutlined } from "@ant-design/icons";
import { useEffect, useMemo, useRef } from "react";
import { ApprovalCard } from "../chat/approval";
import { focusedApproval, moveToCard } from "../chat/approval-keys";
import { StackActions, stackApprovals, stackTitle } from "../chat/approval-stack";
import { RouteLink } from "../components/link";
import { navigate } from "../layout/router";
import { useAppState } from "../state/hooks";
import { usePreferences } from "../state/preferences";
import { singleKey } from "../state/shortcuts";
import type { ApprovalShape } from "../wire";
import { EmptyState, View } from "./view";

export default function Approvals() {
  const { approvals, agents, sessionsLoaded } = useAppState();
  const { singleKeys } = usePreferences();
  const stacks = useMemo(() => stackApprovals([...approvals].sort((a, b) => a.expiresAt - b.expiresAt)), [approvals]);
  useInboxKeys(approvals);
  return (
    <View title="Approvals" description="Requests survive restarts and expire if unanswered.">
      {approvals.length > 0 && singleKeys && (
        <p className="muted key-help">
          <kbd>j</kbd> <kbd>k</kbd> next, previous · <kbd>y</kbd> allow once · <kbd>n</kbd> deny
          {stacks.length < approvals.length && (
            <>
              {" "}
              · <kbd>x</kbd> select
            </>
          )}{" "}
          · <kbd>Enter</kbd> open the chat
        </p>
      )}
      {stacks.map((stack) =>
        stack.length === 1 ? (
          stack.map((approval) => <Request key={approval.approvalId} approval={approval} />)
        ) : (
          <section key={stack[0]?.approvalId} className="approval-stack" aria-label={stackTitle(stack, agents)}>
            <StackActions stack={stack} />
            {stack.map((approval) => (
              <Request key={approval.approvalId} approval={approval} />
            ))}
          </section>
        ),
      )}
      {sessionsLoaded && approvals.length === 0 && (
        <EmptyState icon={<SafetyCertificateOutlined aria-hidden />} title="Nothing needs your approval.">
          When an agent calls a tool that requires approval, the request appears here and in its chat.
        </EmptyState>
      )}
    </View>
  );
}

function Request({ approval }: { approval: ApprovalShape }) {
  const { sessions } = useAppState();
  const session = sessions.find(({ sessionKey }) => sessionKey === approval.sessionKey);
  return (
    <ApprovalCard
      approval={approval}
      source={
        <p className="approval-source">
          In <RouteLink to={{ view: "chat", id: approval.sessionKey }}>{session?.label || "a chat"}</RouteLink>
        </p>
      }
    />
  );
}

/** j and k move between the requests, Enter opens the chat of the focused one. The cards themselves take y and n. */
function useInboxKeys(approvals: readonly ApprovalShape[]): void {
  const latest = useRef(approvals);
  latest.current = approvals;
  useEffect(() => {
    const handleKeyDown = (event: KeyboardEvent) => {
      const key = singleKey(event);
      if (key === "j" || key === "k") {
        event.preventDefault();
        moveToCard(key === "j" ? 1 : -1);
      } else if (key === "enter" && document.activeElement?.matches("[data-approval]")) {
        const approval = latest.current.find(({ approvalId }) => approvalId === focusedApproval());
        if (approval) navigate({ view: "chat", id: approval.sessionKey });
      }
    };
    window.addEventListener("keydown", handleKeyDown);
    return () => window.removeEventListener("keydown", handleKeyDown);
  }, []);
}
