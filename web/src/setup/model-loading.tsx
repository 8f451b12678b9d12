// Text in place of the working dots while a local model is downloaded or loaded.

import { useAppState } from "../state/hooks";

/** Return what the model of a run is waiting for; empty if it is ready. */
export function useModelLoading(model: string): string {
  const { modelProgress } = useAppState();
  const progress = model.startsWith("local/") ? modelProgress[model.slice("local/".length)] : undefined;
  if (!progress || (progress.state !== "loading" && progress.state !== "downloading")) return "";
  const verb = progress.state === "loading" ? "Loading" : "Downloading";
  return `${verb} the model…${progress.total ? ` ${Math.floor((100 * progress.done) / progress.total)} %` : ""}`;
}
