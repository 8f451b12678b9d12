// Live regions for screen readers. Streamed text is not read out; its end is, and so are new approval requests.

import { useEffect, useRef, useState } from "react";
import { useAppState, useSession } from "../state/hooks";
import { isOpenRun, type SessionState } from "../state/session";

const ENDINGS: Record<string, string> = { failed: "The answer failed", cancelled: "Answer stopped" };

export function Announcements() {
  const answer = useAnswerAnnouncement(useSession());
  const approval = useApprovalAnnouncement();
  return (
    <div className="visually-hidden">
      <div role="status">{answer}</div>
      <div role="alert">{approval}</div>
    </div>
  );
}

/** A short run starts and ends between two renderings, so the ended ones are compared. */
function useAnswerAnnouncement({ key, runs, loaded }: SessionState): string {
  const [text, setText] = useState("");
  const before = useRef<{ key: string; ended: Set<string>; open: number }>(undefined);
  useEffect(() => {
    if (!loaded) return;
    const ended = Object.values(runs).filter((run) => !isOpenRun(run));
    const open = Object.keys(runs).length - ended.length;
    const known = before.current?.key === key ? before.current : undefined;
    before.current = { key, ended: new Set(ended.map(({ runId }) => runId)), open };
    const added = known && ended.find(({ runId }) => !known.ended.has(runId));
    if (added) setText(ENDINGS[added.status] ?? "Answer finished");
    else if (!known || open > known.open) setText(""); // or the same words are not read again
  }, [key, runs, loaded]);
  return text;
}

function useApprovalAnnouncement(): string {
  const { approvals, sessionsLoaded } = useAppState();
  const [text, setText] = useState("");
  const known = useRef<Set<string>>(undefined);
  useEffect(() => {
    const added = approvals.find(({ approvalId }) => !known.current?.has(approvalId));
    if (known.current && added)
      setText(`Approval needed: ${added.agentId ?? "an agent"} wants to use ${added.toolName}`);
    else if (approvals.length === 0) setText("");
    if (sessionsLoaded) known.current = new Set(approvals.map(({ approvalId }) => approvalId));
  }, [approvals, sessionsLoaded]);
  return text;
}
