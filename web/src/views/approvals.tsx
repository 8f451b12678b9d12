// Pending approvals of all sessions.

import { SafetyCertificateOutlined } from "@ant-design/icons";
import { ApprovalCard } from "../chat/approval";
import { RouteLink } from "../components/link";
import { useAppState } from "../state/hooks";
import { EmptyState, View } from "./view";

export default function Approvals() {
  const { approvals, sessions, sessionsLoaded } = useAppState();
  const sessionName = (key: string) => sessions.find(({ sessionKey }) => sessionKey === key)?.label || "a session";
  return (
    <View title="Approvals" description="Requests survive restarts and expire if unanswered.">
      {approvals.map((approval) => (
        <ApprovalCard
          key={approval.approvalId}
          approval={approval}
          source={
            <p className="approval-source">
              Requested by <strong>{approval.agentId}</strong> in{" "}
              <RouteLink to={{ view: "chat", id: approval.sessionKey }}>{sessionName(approval.sessionKey)}</RouteLink>
            </p>
          }
        />
      ))}
      {sessionsLoaded && approvals.length === 0 && (
        <EmptyState icon={<SafetyCertificateOutlined aria-hidden />} title="Nothing needs your approval.">
          When an agent calls a tool that requires approval, the request appears here and in its chat.
        </EmptyState>
      )}
    </View>
  );
}
