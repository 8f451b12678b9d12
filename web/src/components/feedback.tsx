// Messages and confirmations. antd draws them; it is loaded when the first one is shown.

import type { App as AntApp } from "antd";
import { lazy, Suspense, useSyncExternalStore } from "react";

type Api = ReturnType<typeof AntApp.useApp>;
type Show = (text: string) => void;

export interface Feedback {
  message: {
    /** Say what was done; `undo` reverses it. */
    success: (text: string, undo?: () => void) => void;
    info: Show;
    /** A warning or an error stays until a person dismisses it. */
    warning: Show;
    error: Show;
  };
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

/** Show a message with a button that closes it. The same text is shown once. */
function showWithButton(
  type: "success" | "warning" | "error",
  text: string,
  label: string,
  onClick?: () => void,
): void {
  whenLoaded(({ message }) => {
    const close = () => {
      message.destroy(text);
      onClick?.();
    };
    const content = (
      <>
        {text}{" "}
        <button type="button" className="plain link" onClick={close}>
          {label}
        </button>
      </>
    );
    void message.open({ type, key: text, content, ...(type === "success" ? {} : { duration: 0 }) });
  });
}

const FEEDBACK: Feedback = {
  message: {
    success: (text, undo) =>
      undo ? showWithButton("success", text, "Undo", undo) : whenLoaded(({ message }) => void message.success(text)),
    info: (text) => whenLoaded(({ message }) => void message.info(text)),
    warning: (text) => showWithButton("warning", text, "Dismiss"),
    error: (text) => showWithButton("error", text, "Dismiss"),
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
