// Router: maps the URL path to a view and back.

import { useSyncExternalStore } from "react";
import { newId } from "../state/ids";

export const VIEWS = ["chat", "approvals", "agents", "jobs", "audit", "runs", "usage", "settings"] as const;
export type View = (typeof VIEWS)[number];

export interface Route {
  view: View;
  /** The session of a chat, the selected run or job, or the tab of the settings. */
  id: string;
}

export function parseRoute(path: string): Route {
  const [first = "", second = ""] = path.split("/").filter(Boolean).map(decodeSegment);
  if (first === "c" && second) return { view: "chat", id: second };
  const view = VIEWS.find((name) => name === first && name !== "chat");
  return view ? { view, id: second } : { view: "chat", id: "" };
}

function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function routePath({ view, id }: Route): string {
  if (view === "chat") return id ? `/c/${encodeURIComponent(id)}` : "/";
  return id ? `/${view}/${encodeURIComponent(id)}` : `/${view}`;
}

const listeners = new Set<() => void>();
let current = parseRoute(typeof location === "undefined" ? "/" : location.pathname);

/** Asks before the page leaves the current route; it calls `leave` if the answer is yes. */
export type LeaveGuard = (leave: () => void) => void;
let leaveGuard: LeaveGuard | null = null;

/** Have a guard ask before the page leaves the current route. Returns a function that removes the guard. */
export function guardRoute(guard: LeaveGuard): () => void {
  leaveGuard = guard;
  return () => {
    if (leaveGuard === guard) leaveGuard = null;
  };
}

export function navigate(route: Route, replace = false): void {
  const path = routePath(route);
  const leave = () => {
    if (path !== location.pathname) history[replace ? "replaceState" : "pushState"](null, "", path);
    updateRoute();
  };
  if (leaveGuard && path !== location.pathname) askToLeave(leave);
  else leave();
}

function askToLeave(leave: () => void): void {
  leaveGuard?.(() => {
    leaveGuard = null;
    leave();
  });
}

/** Route of a new chat. Its session key is generated here; the gateway creates the session with the first message. */
export const newChat = (): Route => ({ view: "chat", id: newId() });

function updateRoute(): void {
  current = parseRoute(location.pathname);
  for (const listener of listeners) listener();
}

/** The browser has already moved: move back while the guard asks. */
function handlePopState(): void {
  const target = location.pathname;
  if (!leaveGuard || target === routePath(current)) {
    updateRoute();
    return;
  }
  history.pushState(null, "", routePath(current));
  askToLeave(() => navigate(parseRoute(target)));
}

if (typeof window !== "undefined") window.addEventListener("popstate", handlePopState);

export function useRoute(): Route {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}
