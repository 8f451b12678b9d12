// Name and avatar of an agent. The colour of the avatar derives from its id.

import { memo } from "react";
import { useAppState } from "../state/hooks";
import { toSafeLine } from "../state/unicode-safety";

const COLORS = 8;

/** Return the colour number of an id: the same everywhere and always. */
function colorIndex(id: string): number {
  let hash = 0;
  for (const character of id) hash = (hash * 31 + (character.codePointAt(0) ?? 0)) % 997;
  return hash % COLORS;
}

export function useAgentName(id: string): string {
  const { agents } = useAppState();
  const name = agents.find((agent) => agent.id === id)?.name || id || agents.find((agent) => agent.default)?.name;
  return toSafeLine(name || "Agent", 60);
}

export const Avatar = memo(function Avatar({ id, name }: { id: string; name: string }) {
  return (
    <span className="avatar" style={{ background: `var(--series-${colorIndex(id)})` }} aria-hidden>
      {[...name][0]?.toUpperCase()}
    </span>
  );
});
