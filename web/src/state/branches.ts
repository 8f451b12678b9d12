// Branches: sessions that continue from the same place with another version of a message.

import type { SessionShape } from "../wire";

/** What a branch stores: the session it was made from, and the message before the changed one (empty: the first). */
export interface Branch {
  root: string;
  from: string;
  at: string;
}

function branchOf(session: SessionShape | undefined): Branch | undefined {
  const branch = session?.metadata?.branch as Partial<Branch> | null | undefined;
  if (typeof branch?.root !== "string" || typeof branch.from !== "string" || typeof branch.at !== "string")
    return undefined;
  return { root: branch.root, from: branch.from, at: branch.at };
}

/** Return what a new branch of a session stores. A further version of the same message is a sibling. */
export function newBranch(session: SessionShape | undefined, key: string, at: string): Branch {
  const own = branchOf(session);
  return { root: own?.root ?? key, from: own?.at === at ? own.from : key, at };
}

/** Return the sessions with the versions of the message after `at`, oldest first, and which of them is open. */
export function versionsAt(
  sessions: readonly SessionShape[],
  key: string,
  at: string,
): { keys: string[]; current: number } | undefined {
  const byKey = new Map(sessions.map((session) => [session.sessionKey, session]));
  const seen = new Set<string>();
  for (let open = key; open && !seen.has(open); open = branchOf(byKey.get(open))?.from ?? "") {
    seen.add(open);
    const own = branchOf(byKey.get(open));
    const origin = own?.at === at ? own.from : open;
    const siblings = sessions
      .filter((session) => {
        const branch = branchOf(session);
        return branch?.from === origin && branch.at === at;
      })
      .sort((a, b) => a.createdAt - b.createdAt)
      .map((session) => session.sessionKey);
    if (siblings.length > 0) {
      const keys = [origin, ...siblings];
      return { keys, current: keys.indexOf(open) };
    }
  }
  return undefined;
}

/** Of each family of branches keep only the session that was used last, so that a list shows a chat once. */
export function hideOlderBranches(sessions: readonly SessionShape[], open: string): SessionShape[] {
  const shown = new Map<string, SessionShape>();
  for (const session of sessions) {
    const root = branchOf(session)?.root ?? session.sessionKey;
    const known = shown.get(root);
    if (!known || session.sessionKey === open || (known.sessionKey !== open && session.updatedAt > known.updatedAt))
      shown.set(root, session);
  }
  const kept = new Set(shown.values());
  return sessions.filter((session) => kept.has(session));
}
