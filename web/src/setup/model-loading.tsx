// Text in place of the working dots while a local model is downloaded or loaded.

import { useRef } from "react";
import { useAppState, useNow } from "../state/hooks";

export interface ModelLoading {
  label: string;
  /** How far it is, as "40 % · 6 s". */
  detail: string;
}

/** Return what the model of a run is waiting for; nothing if it is ready. */
export function useModelLoading(model: string): ModelLoading | undefined {
  const { modelProgress } = useAppState();
  const now = useNow(1000);
  const since = useRef<number>(undefined);
  const progress = model.startsWith("local/") ? modelProgress[model.slice("local/".length)] : undefined;
  if (!progress || (progress.state !== "loading" && progress.state !== "downloading")) {
    since.current = undefined;
    return undefined;
  }
  since.current ??= now;
  const { state, done, total } = progress;
  const percent = total ? `${Math.min(99, Math.floor((100 * done) / total))} %` : "";
  const seconds = Math.round((now - since.current) / 1000);
  return {
    label: `${state === "loading" ? "Loading" : "Downloading"} the model…`,
    detail: [percent, seconds > 0 && `${seconds} s`].filter(Boolean).join(" · "),
  };
}
