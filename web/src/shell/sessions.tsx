// The list of sessions, the latest first, by day.

import { Button } from "antd";
import { memo, useMemo } from "react";
import { useAtlas, useHouse } from "../state/use";
import type { SessionShape } from "../wire";
import { Inside } from "./link";
import { useRoute } from "./route";

export function SessionList({ onPick }: { onPick?: () => void }) {
  const atlas = useAtlas();
  const { sessions, sessionsLoaded, moreSessions, approvals } = useHouse();
  const route = useRoute();
  const groups = useMemo(() => grouped(sessions), [sessions]);
  const asking = useMemo(() => new Set(approvals.map((each) => each.sessionKey)), [approvals]);
  return (
    <nav className="sessions" aria-label="Sessions">
      {groups.map(({ name, members }) => (
        <section key={name}>
          <h3>{name}</h3>
          <ul>
            {members.map((session) => (
              <Row
                key={session.sessionKey}
                session={session}
                active={route.view === "chat" && route.id === session.sessionKey}
                asking={asking.has(session.sessionKey)}
                onPick={onPick}
              />
            ))}
          </ul>
        </section>
      ))}
      {sessionsLoaded && sessions.length === 0 && <p className="quiet hint">What you talk about is kept here.</p>}
      {moreSessions && (
        <Button type="text" size="small" block onClick={() => void atlas.moreSessions()}>
          Older
        </Button>
      )}
    </nav>
  );
}

const Row = memo(function Row({
  session,
  active,
  asking,
  onPick,
}: {
  session: SessionShape;
  active: boolean;
  asking: boolean;
  onPick?: () => void;
}) {
  return (
    <li>
      <Inside
        to={{ view: "chat", id: session.sessionKey }}
        className={active ? "session active" : "session"}
        aria-current={active ? "page" : undefined}
        title={session.label}
        onClick={onPick}
      >
        <span className="name">{session.label || "New chat"}</span>
        {asking ? (
          <i className="dot asking" role="img" aria-label="waits for your answer" />
        ) : (
          session.running && <i className="dot running" role="img" aria-label="a turn is under way" />
        )}
      </Inside>
    </li>
  );
});

export function grouped(
  sessions: readonly SessionShape[],
  now = new Date(),
): { name: string; members: SessionShape[] }[] {
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const day = 86_400_000;
  const names: [string, number][] = [
    ["Today", today],
    ["Yesterday", today - day],
    ["This week", today - 6 * day],
    ["This month", today - 29 * day],
    ["Earlier", -Infinity],
  ];
  const groups = names.map(([name]) => ({ name, members: [] as SessionShape[] }));
  for (const session of sessions)
    groups[names.findIndex(([, since]) => session.updatedAt >= since)]?.members.push(session);
  return groups.filter(({ members }) => members.length > 0);
}
