// List of sessions in the sidebar, newest first, grouped by day.

import { Button } from "antd";
import { memo, useMemo } from "react";
import { RouteLink } from "../components/link";
import { hideOlderBranches } from "../state/branches";
import { useAppState, useClient } from "../state/hooks";
import type { SessionShape } from "../wire";
import { useRoute } from "./router";

export function SessionList({ onNavigate }: { onNavigate?: () => void }) {
  const client = useClient();
  const { sessions, sessionsLoaded, nextSessionsCursor, approvals, unread } = useAppState();
  const route = useRoute();
  const open = route.view === "chat" ? route.id : "";
  const groups = useMemo(() => groupSessions(hideOlderBranches(sessions, open)), [sessions, open]);
  const awaitingApproval = useMemo(() => new Set(approvals.map((approval) => approval.sessionKey)), [approvals]);
  return (
    <nav className="sessions" aria-label="Sessions">
      {groups.map(({ name, members }) => (
        <section key={name}>
          <h3>{name}</h3>
          <ul>
            {members.map((session) => (
              <SessionRow
                key={session.sessionKey}
                session={session}
                active={route.view === "chat" && route.id === session.sessionKey}
                needsApproval={awaitingApproval.has(session.sessionKey)}
                unread={unread.has(session.sessionKey)}
                onNavigate={onNavigate}
              />
            ))}
          </ul>
        </section>
      ))}
      {sessionsLoaded && sessions.length === 0 && <p className="muted hint">Your chats will appear here.</p>}
      {nextSessionsCursor && (
        <Button type="text" size="small" block onClick={() => void client.loadMoreSessions()}>
          Show more
        </Button>
      )}
    </nav>
  );
}

interface SessionRowProps {
  session: SessionShape;
  active: boolean;
  needsApproval: boolean;
  unread: boolean;
  onNavigate?: () => void;
}

const SessionRow = memo(function SessionRow({ session, active, needsApproval, unread, onNavigate }: SessionRowProps) {
  return (
    <li>
      <RouteLink
        to={{ view: "chat", id: session.sessionKey }}
        className={active ? "session active" : "session"}
        aria-current={active ? "page" : undefined}
        title={session.label}
        onClick={onNavigate}
      >
        <span className={unread ? "name unread" : "name"}>{session.label || "New chat"}</span>
        {needsApproval ? (
          <i className="dot needs-approval" role="img" aria-label="Needs approval" />
        ) : unread ? (
          <i className="dot unread" role="img" aria-label="Unread" />
        ) : (
          session.running && <i className="dot running" role="img" aria-label="Running" />
        )}
      </RouteLink>
    </li>
  );
});

interface SessionGroup {
  name: string;
  members: SessionShape[];
}

/** Pinned sessions first, then folders by name, then the others by day. */
function groupSessions(sessions: readonly SessionShape[], now = new Date()): SessionGroup[] {
  const folders = [...new Set(sessions.filter((each) => !each.pinned).map((each) => each.folder ?? ""))].sort();
  const groups = [
    { name: "Pinned", members: sessions.filter((each) => each.pinned) },
    ...folders
      .filter(Boolean)
      .map((name) => ({ name, members: sessions.filter((each) => !each.pinned && each.folder === name) })),
  ];
  const others = sessions.filter((each) => !each.pinned && !each.folder);
  return [...groups.filter(({ members }) => members.length > 0), ...groupByDay(others, now)];
}

export function groupByDay(sessions: readonly SessionShape[], now = new Date()): SessionGroup[] {
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const day = 86_400_000;
  const periods: [string, number][] = [
    ["Today", today],
    ["Yesterday", today - day],
    ["Previous 7 days", today - 6 * day],
    ["Previous 30 days", today - 29 * day],
    ["Older", -Infinity],
  ];
  const groups: SessionGroup[] = periods.map(([name]) => ({ name, members: [] }));
  for (const session of sessions)
    groups[periods.findIndex(([, since]) => session.updatedAt >= since)]?.members.push(session);
  return groups.filter(({ members }) => members.length > 0);
}
