// How views reach the model.

import { createContext, use, useCallback, useEffect, useState, useSyncExternalStore } from "react";
import type { JobShape, Methods } from "../wire";
import type { Atlas, House } from "./atlas";
import type { Talk } from "./talk";

export const AtlasContext = createContext<Atlas | null>(null);

export function useAtlas(): Atlas {
  const atlas = use(AtlasContext);
  if (!atlas) throw new Error("no Atlas here");
  return atlas;
}

export function useHouse(): House {
  const { house } = useAtlas();
  return useSyncExternalStore(house.subscribe, house.snapshot);
}

export function useTalk(): Talk {
  const { talk } = useAtlas();
  return useSyncExternalStore(talk.subscribe, talk.snapshot);
}

export interface Asked<T> {
  answer?: T;
  error?: string;
  busy: boolean;
  again: () => void;
}

/** Ask the gateway for something a view shows; asked again when the params change or the connection comes back. */
export function useAsked<M extends keyof Methods>(
  method: M,
  params: Methods[M]["params"],
): Asked<Methods[M]["result"]> {
  const atlas = useAtlas();
  const { link } = useHouse();
  const [state, setState] = useState<{ answer?: Methods[M]["result"]; error?: string; busy: boolean }>({ busy: true });
  const [turn, setTurn] = useState(0);
  const key = JSON.stringify(params);
  useEffect(() => {
    if (link !== "online") return;
    let wanted = true;
    setState((before) => ({ ...before, busy: true }));
    atlas.ask(method, JSON.parse(key) as Methods[M]["params"]).then(
      (answer) => wanted && setState({ answer, busy: false }),
      (error: Error) => wanted && setState((before) => ({ ...before, error: error.message, busy: false })),
    );
    return () => void (wanted = false);
  }, [atlas, method, key, link, turn]);
  const again = useCallback(() => setTurn((each) => each + 1), []);
  return { ...state, again };
}

const NO_NEWS: ReadonlyMap<string, JobShape> = new Map();

/** Jobs as they were last told of over this connection, which is once a list of them was asked for. */
export function useJobNews(): ReadonlyMap<string, JobShape> {
  const atlas = useAtlas();
  const { link } = useHouse();
  const [news, setNews] = useState(NO_NEWS);
  useEffect(() => {
    const hear = (job: JobShape) => setNews((before) => new Map(before).set(job.jobId, job));
    atlas.jobs.add(hear);
    return () => void atlas.jobs.delete(hear);
  }, [atlas]);
  useEffect(() => {
    if (link === "online") setNews(NO_NEWS); // what changed while nobody listened stands in the list that is asked for now
  }, [link]);
  return news;
}

/** The time, again every so often; only while somebody looks at it. */
export function useNow(every: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
