// What this browser keeps for a while: words not sent yet, and those on their way until the gateway has them.

import type { Outgoing } from "./talk";

const DRAFT = "atlas.draft.";
const OUT = "atlas.outgoing";

export function draftOf(key: string): string {
  return localStorage.getItem(DRAFT + key) ?? "";
}

export function keepDraft(key: string, text: string): void {
  if (text) localStorage.setItem(DRAFT + key, text);
  else localStorage.removeItem(DRAFT + key);
}

type Kept = Record<string, Outgoing[]>;

/** Messages that this tab sent and of which it does not know that they arrived. */
export function keptOutgoing(): Kept {
  try {
    return JSON.parse(sessionStorage.getItem(OUT) ?? "{}") as Kept;
  } catch {
    return {};
  }
}

export function keepOutgoing(key: string, outgoing: readonly Outgoing[]): void {
  const kept = keptOutgoing();
  const open = outgoing.filter((each) => each.runId === undefined && each.state === "sending");
  if (open.length) kept[key] = [...open];
  else delete kept[key];
  try {
    sessionStorage.setItem(OUT, JSON.stringify(kept));
  } catch {
    // a large attachment does not fit: the message still goes out, it only does not outlive a reload
  }
}
