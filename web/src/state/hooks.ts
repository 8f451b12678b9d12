// React hooks for the client's state and requests.

import { createContext, use, useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
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

interface PageList<T> {
  /** The parameters of these pages. */
  key: string;
  pages: readonly T[];
  loading: boolean;
  error?: string;
}

/** Like `useQuery`, for a list in pages. A reload reads as many pages as are shown. */
export function usePages<M extends ListMethod>(
  method: M,
  params: Methods[M]["params"],
): PagedQuery<Methods[M]["result"]> {
  type Page = Methods[M]["result"];
  const client = useClient();
  const { status } = useAppState();
  const [list, setList] = useState<PageList<Page>>({ key: "", pages: [], loading: true });
  const [reloads, setReloads] = useState(0);
  const key = JSON.stringify(params);
  const wanted = useRef({ key, count: 1 });
  // biome-ignore lint/correctness/useExhaustiveDependencies: `reloads` triggers the request
  useEffect(() => {
    if (status !== "online") return;
    if (wanted.current.key !== key) wanted.current = { key, count: 1 };
    let stale = false;
    const readPages = async () => {
      const pages: Page[] = [];
      let cursor: string | undefined;
      do {
        const page = await client.request(method, { ...(JSON.parse(key) as Methods[M]["params"]), cursor });
        pages.push(page);
        cursor = page.nextCursor ?? undefined;
      } while (cursor !== undefined && pages.length < wanted.current.count && !stale);
      return pages;
    };
    setList((previous) => ({ ...previous, loading: true }));
    readPages().then(
      (pages) => !stale && setList({ key, pages, loading: false }),
      ({ message }: Error) =>
        !stale &&
        setList((previous) => ({
          key,
          pages: previous.key === key ? previous.pages : [],
          loading: false,
          error: message,
        })),
    );
    return () => {
      stale = true;
    };
  }, [client, method, key, status, reloads]);
  const { pages, loading, error } = list;
  const cursor = list.key === key ? (pages.at(-1)?.nextCursor ?? undefined) : undefined;
  const loadMore = () => {
    if (cursor === undefined) return;
    wanted.current = { key, count: pages.length + 1 };
    const update = (change: Partial<PageList<Page>>) =>
      setList((previous) => (previous.pages === pages ? { ...previous, error: undefined, ...change } : previous));
    client.request(method, { ...params, cursor }).then(
      (page) => update({ pages: [...pages, page] }),
      (failure: Error) => update({ error: failure.message }),
    );
  };
  const reload = useCallback(() => setReloads((count) => count + 1), []);
  return { pages, hasMore: cursor !== undefined, loadMore, loading, error, reload };
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
