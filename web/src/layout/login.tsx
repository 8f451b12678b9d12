// Sign-in form, shown when this browser has no valid cookie.

import { Alert, Button } from "antd";
import { type FormEvent, useState } from "react";
import { Logo } from "../components/icons";
import { signIn } from "../net/sign-in";

export interface SignedOut {
  type: "error" | "info";
  text: string;
}

interface Props {
  /** Why the user has to sign in; nothing at the first visit. */
  notice: SignedOut | undefined;
  onSignedIn: () => void;
}

export function Login({ notice, onSignedIn }: Props) {
  const [token, setToken] = useState("");
  const [visible, setVisible] = useState(false);
  const [remember, setRemember] = useState(true);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    if (!token.trim() || busy) return;
    setBusy(true);
    const failure = await signIn(token.trim(), remember);
    setBusy(false);
    setError(failure);
    if (!failure) onSignedIn();
  };
  const shown = error ? ({ type: "error", text: error } as const) : notice;
  return (
    <main className="login">
      <form onSubmit={(event) => void submit(event)}>
        <Logo size={40} />
        <h1>Sign in to Atlas</h1>
        <p>Sign in with your access token.</p>
        {shown && (
          <Alert
            type={shown.type}
            showIcon
            title={shown.text}
            role={shown.type === "error" ? "alert" : "status"}
            id="sign-in-notice"
          />
        )}
        <div className="field">
          <label htmlFor="token">Access token</label>
          <div className="password">
            <input
              id="token"
              type={visible ? "text" : "password"}
              value={token}
              // biome-ignore lint/a11y/noAutofocus: the only field of the page
              autoFocus
              autoComplete="current-password"
              spellCheck={false}
              aria-invalid={error !== ""}
              aria-describedby={shown ? "sign-in-notice" : undefined}
              onChange={(event) => setToken(event.target.value)}
            />
            <button type="button" aria-pressed={visible} onClick={() => setVisible(!visible)}>
              {visible ? "Hide" : "Show"}
            </button>
          </div>
        </div>
        <label className="remember">
          <input type="checkbox" checked={remember} onChange={(event) => setRemember(event.target.checked)} />
          Keep me signed in on this device for 30 days
        </label>
        <Button type="primary" size="large" block htmlType="submit" loading={busy} disabled={!token.trim()}>
          Sign in
        </Button>
        <details>
          <summary>Where is my token?</summary>
          <p className="muted">
            Run <code>atlas open</code>, or use the link printed at start.
          </p>
        </details>
      </form>
    </main>
  );
}
