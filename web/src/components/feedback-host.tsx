// antd's messages and confirmations, for the views that are loaded when they are opened and for `useFeedback`.

import { App as AntApp } from "antd";
import { type ReactNode, useEffect } from "react";
import { registerFeedback } from "./feedback";

/** Long enough to read a sentence, and to look up from the keyboard first. */
const MESSAGE_SECONDS = 6;
const MAX_MESSAGES = 3;

export default function FeedbackHost({ children }: { children: ReactNode }) {
  return (
    <AntApp component={false} message={{ duration: MESSAGE_SECONDS, maxCount: MAX_MESSAGES }}>
      {children}
    </AntApp>
  );
}

export function Register() {
  const api = AntApp.useApp();
  useEffect(() => registerFeedback(api), [api]);
  return null;
}
