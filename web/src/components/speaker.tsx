// Name and avatar of an agent. The colour of the avatar derives from its id.

import { memo } from "react";
import { useAppState } from "../state/hooks";
import { toSafeLine } from "../state/unicode-safety";
import type { AgentShape } from "../wire";

const COLORS = 8;

/** Return the colour number of an id: the same everywhere and always. */
function colorIndex(id: string): number {
  let hash = 0;
  for (const character of id) hash = (hash * 31 + (character.codePointAt(0) ?? 0)) % 997;
  return hash % COLORS;
}

/** Return the name of an agent and the id that its colour derives from; an answer that begins names no agent yet. */
export function describeSpeaker(id: string, agents: AgentShape[]): { id: string; name: string } {
  const agent = agents.find((each) => (id ? each.id === id : each.default));
  return { id: id || (agent?.id ?? ""), name: toSafeLine(agent?.name || id || agent?.id || "Agent", 60) };
}

export function useSpeaker(id: string): { id: string; name: string } {
  return describeSpeaker(id, useAppState().agents);
}

export function useAgentName(id: string): string {
  return useSpeaker(id).name;
}

export const Avatar = memo(function Avatar({ id, name }: { id: string; name: string }) {
  return (
    <span className="avatar" style={{ background: `var(--series-${colorIndex(id)})` }} aria-hidden>
      {[...name][0]?.toUpperCase()}
    </span>
  );
});
