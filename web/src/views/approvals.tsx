// All questions that wait for an answer, wherever they were asked.

import { SafetyCertificateOutlined } from "@ant-design/icons";
import { Approval } from "../chat/approval";
import { Inside } from "../shell/link";
import { useHouse } from "../state/use";
import { Frame, Nothing } from "./frame";

export default function Approvals() {
  const { approvals, sessions, sessionsLoaded } = useHouse();
  const nameOf = (key: string) => sessions.find((session) => session.sessionKey === key)?.label || "a session";
  return (
    <Frame
      title="Approvals"
      about="What your agents may do only if you say so. A question outlives a reload and a restart; an answer counts until its time is over."
    >
      {approvals.map((approval) => (
        <Approval
          key={approval.approvalId}
          approval={approval}
          where={
            <p className="where">
              <strong>{approval.agentId}</strong> asks in{" "}
              <Inside to={{ view: "chat", id: approval.sessionKey }}>{nameOf(approval.sessionKey)}</Inside>
            </p>
          }
        />
      ))}
      {sessionsLoaded && approvals.length === 0 && (
        <Nothing icon={<SafetyCertificateOutlined aria-hidden />} title="Nothing waits for you">
          When a tool that needs your word is called, the question appears here, in its chat, and as a number beside
          “Approvals” in every view.
        </Nothing>
      )}
    </Frame>
  );
}
