// Messages and confirmations. antd draws them; it is loaded when the first one is shown.

import type { App as AntApp } from "antd";
import { lazy, Suspense, useSyncExternalStore } from "react";

type Api = ReturnType<typeof AntApp.useApp>;
type Show = (text: string) => void;

export interface Feedback {
  message: { success: Show; info: Show; warning: Show; error: Show };
  modal: { confirm: (config: Parameters<Api["modal"]["confirm"]>[0]) => void };
}

let api: Api | undefined;
let requested = false;
const waiting: ((loaded: Api) => void)[] = [];
const listeners = new Set<() => void>();

/** Called by the host when antd is ready: shows what was requested before. */
export function registerFeedback(loaded: Api): void {
  api = loaded;
  for (const show of waiting.splice(0)) show(loaded);
}

function whenLoaded(show: (loaded: Api) => void): void {
  if (api) {
    show(api);
    return;
  }
  waiting.push(show);
  requested = true;
  for (const listener of listeners) listener();
}

const FEEDBACK: Feedback = {
  message: {
    success: (text) => whenLoaded(({ message }) => void message.success(text)),
    info: (text) => whenLoaded(({ message }) => void message.info(text)),
    warning: (text) => whenLoaded(({ message }) => void message.warning(text)),
    error: (text) => whenLoaded(({ message }) => void message.error(text)),
  },
  modal: { confirm: (config) => whenLoaded(({ modal }) => void modal.confirm(config)) },
};

export const useFeedback = (): Feedback => FEEDBACK;

const Host = lazy(() => import("./feedback-host"));

/** Draws the messages and confirmations; empty until the first one. */
export function FeedbackOutlet() {
  const needed = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => requested,
  );
  return (
    <Suspense>
      {needed && (
        <Host>
          <Register />
        </Host>
      )}
    </Suspense>
  );
}

const Register = lazy(() => import("./feedback-host").then(({ Register }) => ({ default: Register })));
