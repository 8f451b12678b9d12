// Where the page stands, as its address says it.

import { useSyncExternalStore } from "react";
import { newId } from "../state/ids";

export const VIEWS = ["chat", "approvals", "agents", "jobs", "audit", "runs", "usage"] as const;
export type View = (typeof VIEWS)[number];

export interface Route {
  view: View;
  /** The session of a chat, or the run or job that is looked at. */
  id: string;
}

export function routeOf(path: string): Route {
  const [first = "", second = ""] = path.split("/").filter(Boolean).map(decoded);
  if (first === "c" && second) return { view: "chat", id: second };
  const view = VIEWS.find((each) => each === first && each !== "chat");
  return view ? { view, id: second } : { view: "chat", id: "" };
}

function decoded(piece: string): string {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece;
  }
}

export function pathOf({ view, id }: Route): string {
  if (view === "chat") return id ? `/c/${encodeURIComponent(id)}` : "/";
  return id ? `/${view}/${encodeURIComponent(id)}` : `/${view}`;
}

const listeners = new Set<() => void>();
let current = routeOf(typeof location === "undefined" ? "/" : location.pathname);

export function go(route: Route, replace = false): void {
  const path = pathOf(route);
  if (path !== location.pathname) history[replace ? "replaceState" : "pushState"](null, "", path);
  moved();
}

/** A new chat has a name at once; the gateway hears of it with the first message. */
export const newChat = (): Route => ({ view: "chat", id: newId() });

function moved(): void {
  current = routeOf(location.pathname);
  for (const listener of listeners) listener();
}

if (typeof window !== "undefined") window.addEventListener("popstate", moved);

export function useRoute(): Route {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => current,
  );
}
