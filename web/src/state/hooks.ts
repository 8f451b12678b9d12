// React hooks for the client's state and requests.

import { createContext, use, useCallback, useEffect, useState, useSyncExternalStore } from "react";
import type { JobShape, Methods, Principal, ResourceUpdated } from "../wire";
import type { AppState, AtlasClient } from "./client";
import type { SessionState } from "./session";

type Scope = Principal["scopes"][number];

export const ClientContext = createContext<AtlasClient | null>(null);

export function useClient(): AtlasClient {
  const client = use(ClientContext);
  if (!client) throw new Error("useClient must be used inside ClientContext");
  return client;
}

export function useAppState(): AppState {
  const { state } = useClient();
  return useSyncExternalStore(state.subscribe, state.snapshot);
}

export function useSession(): SessionState {
  const { session } = useClient();
  return useSyncExternalStore(session.subscribe, session.snapshot);
}

/** Return the name of a session while it is open. Text that is streamed into it does not render the caller again. */
export function useSessionName(id: string): string | undefined {
  const { session } = useClient();
  const name = () => {
    const { key, session: open } = session.snapshot();
    return key === id ? open?.label : undefined;
  };
  return useSyncExternalStore(session.subscribe, name);
}

/** Whether a user has access to their own sessions only, and may not change settings. */
export function isGuest(principal: Principal): boolean {
  return principal.sessions === "own" && !principal.scopes.includes("admin");
}

export interface Query<T> {
  data?: T;
  error?: string;
  loading: boolean;
  reload: () => void;
}

/** Request data for a view; again when the parameters change, after reconnecting, and on `reload`. */
export function useQuery<M extends keyof Methods>(
  method: M,
  params: Methods[M]["params"],
): Query<Methods[M]["result"]> {
  const client = useClient();
  const { status } = useAppState();
  const [state, setState] = useState<Omit<Query<Methods[M]["result"]>, "reload">>({ loading: true });
  const [reloads, setReloads] = useState(0);
  const key = JSON.stringify(params);
  // biome-ignore lint/correctness/useExhaustiveDependencies: `reloads` triggers the request
  useEffect(() => {
    if (status !== "online") return;
    let stale = false;
    setState((previous) => ({ ...previous, loading: true }));
    client.request(method, JSON.parse(key) as Methods[M]["params"]).then(
      (data) => !stale && setState({ data, loading: false }),
      (error: Error) => !stale && setState((previous) => ({ ...previous, error: error.message, loading: false })),
    );
    return () => {
      stale = true;
    };
  }, [client, method, key, status, reloads]);
  const reload = useCallback(() => setReloads((count) => count + 1), []);
  return { ...state, reload };
}

type ListMethod = {
  [M in keyof Methods]: Methods[M] extends {
    params: { cursor?: string | null };
    result: { nextCursor?: string | null };
  }
    ? M
    : never;
}[keyof Methods];

export interface PagedQuery<T> extends Omit<Query<T>, "data"> {
  /** Those requested so far; none before the first one arrived. */
  pages: readonly T[];
  hasMore: boolean;
  loadMore: () => void;
}

interface LaterPages<T> {
  first?: T;
  pages: readonly T[];
  loading: boolean;
  error?: string;
}

/** Like `useQuery`, for a list in pages. A new first page, as after `reload`, drops the later ones. */
export function usePages<M extends ListMethod>(
  method: M,
  params: Methods[M]["params"],
): PagedQuery<Methods[M]["result"]> {
  type Page = Methods[M]["result"];
  const client = useClient();
  const { data: first, loading, error, reload } = useQuery(method, params);
  const [stored, setStored] = useState<LaterPages<Page>>({ pages: [], loading: false });
  const later = stored.first === first ? stored : { first, pages: [], loading: false };
  const pages = first === undefined ? [] : [first, ...later.pages];
  const cursor = pages.at(-1)?.nextCursor ?? undefined;
  const loadMore = () => {
    if (cursor === undefined || loading || later.loading) return;
    const finish = (next: LaterPages<Page>) =>
      setStored((previous) => (previous.first === first ? { ...next, first } : previous));
    setStored({ first, pages: later.pages, loading: true });
    client.request(method, { ...params, cursor }).then(
      (page) => finish({ pages: [...later.pages, page], loading: false }),
      (failure: Error) => finish({ pages: later.pages, loading: false, error: failure.message }),
    );
  };
  return { pages, hasMore: cursor !== undefined, loadMore, loading, error: error ?? later.error, reload };
}

/** Return whether the token has a scope. */
export function useScope(scope: Scope): boolean {
  const { principal } = useAppState();
  return principal?.scopes.includes(scope) ?? false;
}

/** Call `reload` when anybody edits something whose kind starts with this. */
export function useResourceReload(kind: string, reload: () => void): void {
  const client = useClient();
  useEffect(() => {
    const listen = (event: ResourceUpdated) => event.kind.startsWith(kind) && reload();
    client.resourceListeners.add(listen);
    return () => {
      client.resourceListeners.delete(listen);
    };
  }, [client, kind, reload]);
}

const NO_UPDATES: ReadonlyMap<string, JobShape> = new Map();

/** Jobs that changed on this connection, by id. The gateway sends updates once a list of jobs was requested. */
export function useJobUpdates(): ReadonlyMap<string, JobShape> {
  const client = useClient();
  const { status } = useAppState();
  const [updates, setUpdates] = useState(NO_UPDATES);
  useEffect(() => {
    const add = (job: JobShape) => setUpdates((previous) => new Map(previous).set(job.jobId, job));
    client.jobListeners.add(add);
    return () => {
      client.jobListeners.delete(add);
    };
  }, [client]);
  useEffect(() => {
    if (status === "online") setUpdates(NO_UPDATES); // the list that is requested after reconnecting is newer
  }, [status]);
  return updates;
}

/** Return the current time, updated at an interval. */
export function useNow(intervalMs: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), intervalMs);
    return () => clearInterval(timer);
  }, [intervalMs]);
  return now;
}

/** Return whether a media query matches, now and whenever that changes. */
export function useMediaQuery(query: string): boolean {
  return useSyncExternalStore(
    (listener) => {
      const media = matchMedia(query);
      media.addEventListener("change", listener);
      return () => media.removeEventListener("change", listener);
    },
    () => matchMedia(query).matches,
  );
}
