// Typing @ in the composer picks the agent that answers.

import { type KeyboardEvent, type ReactNode, useState } from "react";
import { Avatar } from "../components/speaker";
import { useAppState } from "../state/hooks";
import type { AgentShape } from "../wire";

const TYPING = /(?:^|\s)@([\w-]*)$/;
const COMPLETE = /^@([\w-]+)\s/;
const MAX_SHOWN = 8;

interface Mention {
  /** The agents that match what was typed. */
  list: ReactNode;
  change: (text: string) => void;
  /** Return whether the key chose an agent or moved in the list. */
  handleKeyDown: (event: KeyboardEvent) => boolean;
}

export function useMention(text: string, setText: (text: string) => void, onAgent: (id: string) => void): Mention {
  const { agents } = useAppState();
  const [active, setActive] = useState(0);
  const [dismissed, setDismissed] = useState("");
  const typed = TYPING.exec(text)?.[1]?.toLowerCase();
  const found = typed === undefined || agents.length < 2 || dismissed === text ? [] : matchAgents(agents, typed);
  const choose = ({ id }: AgentShape) => {
    onAgent(id);
    setText(text.replace(TYPING, (match) => (match.startsWith("@") ? "" : (match[0] ?? ""))));
    setActive(0);
  };
  const change = (next: string) => {
    setActive(0);
    const name = COMPLETE.exec(next)?.[1]?.toLowerCase();
    const agent = name && agents.find((each) => each.id.toLowerCase() === name || each.name.toLowerCase() === name);
    if (agent) onAgent(agent.id);
    setText(agent ? next.replace(COMPLETE, "") : next);
  };
  const handleKeyDown = (event: KeyboardEvent): boolean => {
    if (found.length === 0 || event.nativeEvent.isComposing) return false;
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const agent = found[active];
    if (step) setActive((active + step + found.length) % found.length);
    else if ((event.key === "Enter" || event.key === "Tab") && agent) choose(agent);
    else if (event.key === "Escape") setDismissed(text);
    else return false;
    event.preventDefault();
    return true;
  };
  const list = found.length > 0 && (
    <div className="mentions" role="listbox" aria-label="Agents" tabIndex={-1}>
      {found.map((agent, index) => (
        <button
          key={agent.id}
          type="button"
          role="option"
          aria-selected={index === active}
          tabIndex={-1}
          onMouseDown={(event) => event.preventDefault()}
          onClick={() => choose(agent)}
        >
          <Avatar id={agent.id} name={agent.name || agent.id} />
          {agent.name || agent.id} <span className="muted">{agent.description}</span>
        </button>
      ))}
    </div>
  );
  return { list, change, handleKeyDown };
}

function matchAgents(agents: AgentShape[], typed: string): AgentShape[] {
  const matches = ({ id, name }: AgentShape) =>
    id.toLowerCase().startsWith(typed) || name.toLowerCase().startsWith(typed);
  return agents.filter(matches).slice(0, MAX_SHOWN);
}
