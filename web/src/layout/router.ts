// Router: maps the URL path to a view and back.

import { useSyncExternalStore } from "react";
import { newId } from "../state/ids";

/** Path of each view, without the selected item. A chat has its own paths. */
const PATHS = {
  approvals: "/approvals",
  jobs: "/jobs",
  schedules: "/schedules",
  agents: "/agents",
  knowledge: "/knowledge",
  memories: "/memories",
  runs: "/activity/runs",
  audit: "/activity/audit",
  usage: "/activity/usage",
  evaluations: "/activity/evaluations",
  settings: "/settings",
  setup: "/setup",
} as const;

export type View = "chat" | "missing" | keyof typeof PATHS;
export const VIEWS = ["chat", ...(Object.keys(PATHS) as (keyof typeof PATHS)[])] as const;

export interface Route {
  view: View;
  /** The session of a chat, the selected item of a view, the tab of the settings, or the path of a missing page. */
  id: string;
  /** A chat that this page has started: the gateway does not know its session before the first message. */
  isNew?: boolean;
}

export function parseRoute(path: string): Route {
  const segments = path.split("/").filter(Boolean);
  const [first = "", second = ""] = segments;
  if (!first) return { view: "chat", id: "" };
  if (first === "c" && second) return { view: "chat", id: decodeSegment(second) };
  for (const length of [2, 1]) {
    const prefix = `/${segments.slice(0, length).join("/")}`;
    const view = VIEWS.find((name) => name !== "chat" && PATHS[name] === prefix);
    if (view && segments.length <= length + 1) return { view, id: decodeSegment(segments[length] ?? "") };
  }
  return { view: "missing", id: path };
}

function decodeSegment(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function routePath({ view, id }: Route): string {
  if (view === "missing") return id;
  if (view === "chat") return id ? `/c/${encodeURIComponent(id)}` : "/";
  return id ? `${PATHS[view]}/${encodeURIComponent(id)}` : PATHS[view];
}

const listeners = new Set<() => void>();
let navigated = false;
let current: Route = { view: "chat", id: "" };

/** Read the route from the address, and write the address as `routePath` does. */
function readLocation(): Route {
  const route = parseRoute(location.pathname);
  const path = routePath(route);
  if (path !== location.pathname) history.replaceState(history.state, "", path + location.search + location.hash);
  return history.state?.isNew ? { ...route, isNew: true } : route;
}

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
  const state = route.isNew ? { isNew: true } : null;
  const leave = () => {
    if (path !== location.pathname) history[replace ? "replaceState" : "pushState"](state, "", path);
    navigated ||= !replace;
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
export const newChat = (): Route => ({ view: "chat", id: newId(), isNew: true });

/** Whether the user has moved to another view since the page was loaded. */
export const hasNavigated = (): boolean => navigated;

function updateRoute(): void {
  current = readLocation();
  for (const listener of listeners) listener();
}

/** The browser has already moved: move back while the guard asks. */
function handlePopState(): void {
  const target = location.pathname;
  navigated = true;
  if (!leaveGuard || target === routePath(current)) {
    updateRoute();
    return;
  }
  history.pushState(null, "", routePath(current));
  askToLeave(() => navigate(parseRoute(target)));
}

if (typeof window !== "undefined") {
  current = readLocation();
  window.addEventListener("popstate", handlePopState);
}

export function useRoute(): Route {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}
