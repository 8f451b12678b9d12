// Login form, shown when no token is available or the gateway has rejected it.

import { Alert, Button, Input } from "antd";
import { useState } from "react";
import { Logo } from "../components/icons";

export function Login({ rejected, onLogin }: { rejected: boolean; onLogin: (token: string) => void }) {
  const [token, setToken] = useState("");
  return (
    <main className="login">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (token.trim()) onLogin(token.trim());
        }}
      >
        <Logo size={40} />
        <h1>Sign in to Atlas</h1>
        <p>
          Enter the gateway’s access token. It is part of the link that the gateway prints when it starts, and in the
          file <code>token</code> in the gateway’s home directory.
        </p>
        {rejected && <Alert type="error" showIcon title="Invalid token" role="alert" />}
        <Input.Password
          aria-label="Token"
          placeholder="Token"
          size="large"
          value={token}
          autoFocus
          autoComplete="off"
          onChange={(event) => setToken(event.target.value)}
        />
        <Button type="primary" size="large" block htmlType="submit" disabled={!token.trim()}>
          Sign in
        </Button>
        <p className="muted">
          The token is stored in this tab only and sent only to <code>{location.host}</code>.
        </p>
      </form>
    </main>
  );
}
