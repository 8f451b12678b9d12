// A local model: download with progress, pause and resume. The gateway downloads, so a reload loses nothing.

import { Button } from "antd";
import { useEffect, useRef } from "react";
import { useFeedback } from "../components/feedback";
import { useAppState, useClient, useNow } from "../state/hooks";
import type { LocalModelShape } from "../wire";
import { formatBytes } from "./models";

interface Props {
  model: LocalModelShape;
  /** Called when the model can be used. */
  onReady?: () => void;
}

export function LocalModelDownload({ model, onReady }: Props) {
  const client = useClient();
  const { message: toast } = useFeedback();
  const live = useAppState().modelProgress[model.id];
  const state = live && live.state !== "loading" ? live.state : model.state;
  const done = live?.state === "downloading" || live?.state === "paused" ? live.done : (model.done ?? 0);
  const error = live?.state === "failed" ? live.error : model.error;
  const left = useTimeLeft(done, model.size, state === "downloading");
  const wasDownloading = useRef(false);
  useEffect(() => {
    if (state === "downloading") wasDownloading.current = true;
    else if (state === "ready" && wasDownloading.current) {
      wasDownloading.current = false;
      toast.success(`Now using ${model.title}`);
      onReady?.();
    }
  }, [state, model.title, onReady, toast]);
  const request = (method: "models.download" | "models.pause") => {
    const work =
      method === "models.pause"
        ? client.request(method, { id: model.id })
        : client.request(method, { id: model.id, use: true });
    work.catch((failure: Error) => toast.error(failure.message));
  };
  if (model.install) return <code>{model.install}</code>;
  const size = `${formatBytes(done)} of ${formatBytes(model.size)}`;
  if (state === "downloading")
    return (
      <>
        <span className="download" role="status">
          <progress value={done} max={model.size} aria-label={`Download of ${model.title}`} />
          {live?.step === "verifying" ? "Verifying…" : `${size}${left ? ` · ${left}` : ""}`}
        </span>
        <Button onClick={() => request("models.pause")}>Pause</Button>
      </>
    );
  if (state === "paused" || state === "failed")
    return (
      <>
        <span className={state === "failed" ? "error" : "muted"} role="status">
          {state === "failed" ? error || "Download interrupted." : `Paused. ${size}`}
        </span>
        <Button onClick={() => request("models.download")}>Resume</Button>
      </>
    );
  if (state === "ready") return null;
  return <Button onClick={() => request("models.download")}>Download</Button>;
}

/** Estimate the rest of a download from its speed since it was first seen. */
function useTimeLeft(done: number, total: number, running: boolean): string {
  const now = useNow(1000);
  const start = useRef<{ at: number; done: number }>(undefined);
  if (!running) start.current = undefined;
  else start.current ??= { at: now, done };
  const seconds = start.current ? (now - start.current.at) / 1000 : 0;
  const loaded = start.current ? done - start.current.done : 0;
  if (seconds < 2 || loaded <= 0) return "";
  const rest = ((total - done) * seconds) / loaded;
  return rest < 60 ? "less than a minute left" : `${Math.ceil(rest / 60)} min left`;
}
