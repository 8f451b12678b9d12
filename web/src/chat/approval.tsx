// A question of an agent to a person: what exactly would be done, where, and until when an answer counts.

import { ClockCircleOutlined, EditOutlined, SafetyCertificateOutlined } from "@ant-design/icons";
import { App, Button, Input, Tooltip } from "antd";
import { memo, useState } from "react";
import type { Decision } from "../state/kinds";
import { useAtlas, useHouse, useNow } from "../state/use";
import { inOneLine, spanOf, textOf } from "../state/words";
import type { ApprovalShape } from "../wire";
import { Exact } from "./exact";
import { Form } from "./form";

const WORDS: Record<Exclude<Decision, "deny" | "dismiss">, { text: string; hint: string }> = {
  "allow-once": { text: "Allow once", hint: "This call, this time" },
  "allow-session": { text: "For this session", hint: "Exactly these arguments, as long as this session lasts" },
  "allow-always": { text: "Always", hint: "Exactly these arguments, from now on, in every session" },
};

type Mode = "ask" | "deny" | "edit";

export const Approval = memo(function Approval({
  approval,
  where,
}: {
  approval: ApprovalShape;
  where?: React.ReactNode;
}) {
  const atlas = useAtlas();
  const { principal, link } = useHouse();
  const { message } = App.useApp();
  const [busy, setBusy] = useState(false);
  const answer = async (decision: Decision, reason = "", edited?: Record<string, unknown>) => {
    setBusy(true);
    try {
      await atlas.resolve(approval.approvalId, decision, reason, edited);
    } catch (error) {
      message.warning((error as Error).message);
      setBusy(false);
    }
  };
  const may = principal?.scopes.includes("approve") ?? false;
  const off = busy || !may || link !== "online";
  const { form } = approval;
  return (
    <section
      className="approval"
      aria-label={form ? approval.summary : `${approval.toolName} needs your answer`}
      data-approval={approval.approvalId}
    >
      <header>
        <SafetyCertificateOutlined aria-hidden />
        <h4>
          {form ? (
            inOneLine(approval.summary)
          ) : (
            <>
              <code>{approval.toolName}</code> needs your answer
            </>
          )}
        </h4>
        <Countdown until={approval.expiresAt} />
      </header>
      {where}
      {form ? (
        <Form
          form={form}
          off={off}
          onSend={(values) => void answer("allow-once", "", values)}
          onDecline={() => void answer("deny")}
          onDismiss={() => void answer("dismiss")}
        />
      ) : (
        <Call approval={approval} off={off} answer={answer} />
      )}
      {!may && <p className="quiet">Your token may not answer questions.</p>}
    </section>
  );
});

type Answer = (decision: Decision, reason?: string, edited?: Record<string, unknown>) => Promise<void>;

/** A call that is to be made, exactly. */
function Call({ approval, off, answer }: { approval: ApprovalShape; off: boolean; answer: Answer }) {
  const [mode, setMode] = useState<Mode>("ask");
  const isCommand = typeof approval.details.command === "string";
  return (
    <>
      {approval.risk && <p className="risk">{approval.risk}</p>}
      {isCommand && <Exact text={approval.command} label="The command" />}
      {approval.preview && <Preview text={approval.preview} stale={mode === "edit"} />}
      <Details approval={approval} command={isCommand} />
      {mode === "edit" && (
        <Edit
          approval={approval}
          busy={off}
          onCancel={() => setMode("ask")}
          onSend={(edited) => void answer("allow-once", "", edited)}
        />
      )}
      {mode === "deny" && (
        <Deny busy={off} onCancel={() => setMode("ask")} onSend={(reason) => void answer("deny", reason)} />
      )}
      {mode === "ask" && (
        <footer>
          {approval.options
            .filter((option) => option !== "deny" && option !== "dismiss")
            .map((option) => (
              <Tooltip key={option} title={WORDS[option].hint}>
                <Button
                  type={option === "allow-once" ? "primary" : "default"}
                  disabled={off}
                  onClick={() => void answer(option)}
                >
                  {WORDS[option].text}
                </Button>
              </Tooltip>
            ))}
          <Button icon={<EditOutlined aria-hidden />} disabled={off} onClick={() => setMode("edit")}>
            Edit
          </Button>
          <span className="spread" />
          <Button type="text" disabled={off} onClick={() => setMode("deny")}>
            Deny with a reason…
          </Button>
          <Button danger disabled={off} onClick={() => void answer("deny")}>
            Deny
          </Button>
        </footer>
      )}
    </>
  );
}

function Preview({ text, stale }: { text: string; stale: boolean }) {
  return (
    <div className={stale ? "preview stale" : "preview"}>
      <p className="quiet">
        {stale ? "What the call would change as it was made; yours may differ" : "What would change"}
      </p>
      <Exact text={text} label="What would change" />
    </div>
  );
}

function Details({ approval, command }: { approval: ApprovalShape; command: boolean }) {
  const rest = Object.fromEntries(
    Object.entries(approval.details).filter(([name]) => !(command && name === "command")),
  );
  return (
    <dl>
      {Object.entries(rest).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <Exact text={textOf(value)} label={name} />
          </dd>
        </div>
      ))}
      {approval.workingDir && (
        <div>
          <dt className="place">in the folder</dt>
          <dd>
            <Exact text={approval.workingDir} label="The working directory" />
          </dd>
        </div>
      )}
    </dl>
  );
}

function Edit({
  approval,
  busy,
  onSend,
  onCancel,
}: {
  approval: ApprovalShape;
  busy: boolean;
  onSend: (edited: Record<string, unknown>) => void;
  onCancel: () => void;
}) {
  const [text, setText] = useState(() => JSON.stringify(approval.details, null, 2));
  const edited = parsed(text);
  return (
    <div className="inset">
      <Input.TextArea
        aria-label="Arguments as JSON"
        value={text}
        onChange={(event) => setText(event.target.value)}
        autoSize={{ minRows: 3, maxRows: 16 }}
        status={edited ? "" : "error"}
        className="mono"
        spellCheck={false}
        autoFocus
      />
      <footer>
        <Button type="primary" disabled={busy || !edited} onClick={() => edited && onSend(edited)}>
          Allow with these
        </Button>
        <Button onClick={onCancel}>Back</Button>
        {!edited && <span className="quiet">This is no JSON object yet.</span>}
      </footer>
    </div>
  );
}

function parsed(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}

function Deny({ busy, onSend, onCancel }: { busy: boolean; onSend: (reason: string) => void; onCancel: () => void }) {
  const [reason, setReason] = useState("");
  return (
    <div className="inset">
      <Input
        aria-label="Why not"
        placeholder="Why not? The agent is told, and it is kept."
        value={reason}
        maxLength={500}
        onChange={(event) => setReason(event.target.value)}
        onPressEnter={() => onSend(reason)}
        autoFocus
      />
      <footer>
        <Button danger type="primary" disabled={busy} onClick={() => onSend(reason)}>
          Deny
        </Button>
        <Button onClick={onCancel}>Back</Button>
      </footer>
    </div>
  );
}

function Countdown({ until }: { until: number }) {
  const left = until - useNow(1000);
  return (
    <span className={left < 30_000 ? "countdown soon" : "countdown"}>
      <ClockCircleOutlined aria-hidden />{" "}
      {left > 0 ? spanOf(Math.ceil(left / 1000) * 1000) : "no answer counts any more"}
    </span>
  );
}
