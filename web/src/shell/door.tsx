// For who comes without a token: says where it is, and takes it.

import { Alert, Button, Input } from "antd";
import { useState } from "react";
import { Mark } from "./mark";

export function Door({ refused, onToken }: { refused: boolean; onToken: (token: string) => void }) {
  const [token, setToken] = useState("");
  return (
    <main className="door">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (token.trim()) onToken(token.trim());
        }}
      >
        <Mark size={40} />
        <h1>Atlas</h1>
        <p>
          This gateway opens with its token. The link that the gateway prints at its start has it; it also stands in the
          file <code>token</code> in the gateway’s home folder.
        </p>
        {refused && <Alert type="error" showIcon title="This token is not valid here." role="alert" />}
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
          Open
        </Button>
        <p className="quiet">
          It is kept in this tab only, and sent to nobody but the gateway at <code>{location.host}</code>.
        </p>
      </form>
    </main>
  );
}
