// Sign-in form, shown when this browser has no valid cookie.

import { Alert, Button } from "antd";
import { type FormEvent, useState } from "react";
import { Logo } from "../components/icons";
import { type Accepted, acceptInvitation, signIn } from "../net/sign-in";

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

/** Accept an invitation: it makes a token, which is shown once, and signs this browser in. */
export function Invitation({ code, onSignedIn }: { code: string; onSignedIn: () => void }) {
  const [accepted, setAccepted] = useState<Accepted>();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const accept = async () => {
    setBusy(true);
    const outcome = await acceptInvitation(code);
    const failure = typeof outcome === "string" ? outcome : await signIn(outcome.token, true);
    setBusy(false);
    setError(failure);
    if (typeof outcome !== "string") setAccepted(outcome);
  };
  return (
    <main className="login">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (accepted) onSignedIn();
          else void accept();
        }}
      >
        <Logo size={40} />
        <h1>{accepted ? `Welcome, ${accepted.user}` : "You’re invited to Atlas"}</h1>
        {error && <Alert type="error" showIcon role="alert" title={error} />}
        {accepted ? (
          <>
            <p>You’re signed in. To sign in on another device, copy this access token now. You won’t see it again.</p>
            <code className="secret">{accepted.token}</code>
          </>
        ) : (
          <p>Accept the invitation to get your access token and sign in. The link works once.</p>
        )}
        {!error && (
          <Button type="primary" size="large" block htmlType="submit" loading={busy}>
            {accepted ? "Continue" : "Accept invitation"}
          </Button>
        )}
        {error && (
          <Button size="large" block onClick={onSignedIn}>
            Sign in with a token
          </Button>
        )}
      </form>
    </main>
  );
}
