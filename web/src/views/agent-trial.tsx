// Try an agent beside its form: it answers with the unsaved changes, and nothing is stored.

import { Alert, Button, Input } from "antd";
import { useEffect, useRef, useState } from "react";
import { Markdown } from "../markdown/markdown";
import type { AgentValues } from "../state/agent-form";
import { useClient } from "../state/hooks";
import { newId } from "../state/ids";
import type { DraftMessage } from "../wire";

interface Turn extends DraftMessage {
  /** Tools that the answer used, and tools that it could not have. */
  note?: string;
}

export function AgentTrial({ draft, disabled }: { draft: AgentValues; disabled: boolean }) {
  const client = useClient();
  const [turns, setTurns] = useState<Turn[]>([]);
  const [text, setText] = useState("");
  const [partial, setPartial] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const trial = useRef("");
  useEffect(() => {
    const listen = (event: { trialId: string; text: string; reset?: boolean }) => {
      if (event.trialId === trial.current) setPartial((before) => (event.reset ? "" : before + event.text));
    };
    client.trialListeners.add(listen);
    return () => {
      client.trialListeners.delete(listen);
    };
  }, [client]);
  const send = async () => {
    const message = text.trim();
    if (!message || busy || disabled) return;
    trial.current = newId();
    const history = turns.map(({ role, text }) => ({ role, text }));
    setTurns([...turns, { role: "user", text: message }]);
    setText("");
    setPartial("");
    setError("");
    setBusy(true);
    try {
      const answer = await client.request("agents.tryDraft", { draft, message, history, trialId: trial.current });
      const used = answer.called?.length ? `Used ${[...new Set(answer.called)].join(", ")}.` : "";
      const withheld = answer.withheld?.length ? `Not available here: ${answer.withheld.join(", ")}.` : "";
      const note = [answer.model, used, withheld].filter(Boolean).join(" · ");
      setTurns((before) => [...before, { role: "assistant", text: answer.text, note }]);
    } catch (failure) {
      setError((failure as Error).message);
    } finally {
      trial.current = "";
      setPartial("");
      setBusy(false);
    }
  };
  return (
    <section className="agent-trial" aria-label="Try it">
      <header>
        <h2>Try it</h2>
        {turns.length > 0 && (
          <Button size="small" type="text" onClick={() => setTurns([])} disabled={busy}>
            Clear
          </Button>
        )}
      </header>
      <p className="muted">
        Uses your unsaved changes. Not stored. Only tools that change nothing and need no approval are available.
      </p>
      <div className="trial-turns" role="log">
        {turns.map((turn, index) => (
          <div key={index} className={`trial-turn ${turn.role}`}>
            <Markdown text={turn.text} streaming={false} />
            {turn.note && <p className="muted">{turn.note}</p>}
          </div>
        ))}
        {busy && <div className="trial-turn assistant">{partial ? <Markdown text={partial} streaming /> : "…"}</div>}
      </div>
      {error && <Alert type="error" showIcon role="alert" title={error} />}
      <div className="trial-composer">
        <Input.TextArea
          value={text}
          aria-label="Message to the draft"
          placeholder={disabled ? "Enter an id first" : `Message ${draft.name || draft.id}`}
          disabled={disabled}
          autoSize={{ minRows: 1, maxRows: 6 }}
          onChange={({ target }) => setText(target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            void send();
          }}
        />
        <Button type="primary" disabled={!text.trim() || disabled} loading={busy} onClick={() => void send()}>
          Send
        </Button>
      </div>
    </section>
  );
}
