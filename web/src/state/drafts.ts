// Drafts, and messages that were sent but not yet acknowledged by the gateway. Both survive a reload.

import type { PendingMessage } from "./session";

const DRAFT_PREFIX = "atlas.draft.";
const PENDING_KEY = "atlas.outgoing";

export function loadDraft(sessionKey: string): string {
  return localStorage.getItem(DRAFT_PREFIX + sessionKey) ?? "";
}

export function saveDraft(sessionKey: string, text: string): void {
  if (text) localStorage.setItem(DRAFT_PREFIX + sessionKey, text);
  else localStorage.removeItem(DRAFT_PREFIX + sessionKey);
}

type PendingBySession = Record<string, PendingMessage[]>;

/** Return this tab's unacknowledged messages by session. */
export function loadPendingMessages(): PendingBySession {
  try {
    return JSON.parse(sessionStorage.getItem(PENDING_KEY) ?? "{}") as PendingBySession;
  } catch {
    return {};
  }
}

export function savePendingMessages(sessionKey: string, messages: readonly PendingMessage[]): void {
  const pending = loadPendingMessages();
  const unacknowledged = messages.filter((message) => message.runId === undefined && message.state === "sending");
  if (unacknowledged.length) pending[sessionKey] = unacknowledged;
  else delete pending[sessionKey];
  try {
    sessionStorage.setItem(PENDING_KEY, JSON.stringify(pending));
  } catch {
    // a large attachment exceeds the quota: the message is still sent, but does not survive a reload
  }
}
