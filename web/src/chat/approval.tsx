// Approval card: shows exactly what a tool call would do, and lets the user allow, edit or deny it.

import { ClockCircleOutlined, SafetyCertificateOutlined } from "@ant-design/icons";
import { App, Button, Input, Tooltip } from "antd";
import { memo, type ReactNode, useState } from "react";
import { ExactText } from "../components/exact-text";
import { formatDuration, formatValue, toSentence } from "../state/format";
import { useAppState, useClient, useNow } from "../state/hooks";
import type { ApprovalDecision } from "../state/session";
import { toSafeLine } from "../state/unicode-safety";
import type { ApprovalShape } from "../wire";
import { ElicitationForm } from "./elicitation";

const ALLOW_OPTIONS: Record<Exclude<ApprovalDecision, "deny" | "dismiss">, { label: string; hint: string }> = {
  "allow-once": { label: "Allow once", hint: "Allow only this call" },
  "allow-session": { label: "Allow for session", hint: "Allow calls with the same arguments in this session" },
  "allow-always": { label: "Always allow", hint: "Allow calls with the same arguments in every session" },
};

type Resolve = (decision: ApprovalDecision, reason?: string, edited?: Record<string, unknown>) => Promise<void>;

export const ApprovalCard = memo(function ApprovalCard({
  approval,
  source,
}: {
  approval: ApprovalShape;
  /** Where the request comes from, if it is shown outside its chat. */
  source?: ReactNode;
}) {
  const client = useClient();
  const { principal, status } = useAppState();
  const { message: toast } = App.useApp();
  const [busy, setBusy] = useState(false);
  const resolve: Resolve = async (decision, reason = "", edited) => {
    setBusy(true);
    try {
      await client.resolveApproval(approval.approvalId, decision, reason, edited);
    } catch (error) {
      toast.warning((error as Error).message);
      setBusy(false);
    }
  };
  const canApprove = principal?.scopes.includes("approve") ?? false;
  const disabled = busy || !canApprove || status !== "online";
  const { form } = approval;
  const title = form
    ? toSafeLine(approval.summary)
    : isCommand(approval)
      ? "Allow this command?"
      : `Allow ${approval.toolName}?`;
  return (
    <section className="approval" aria-label={title} data-approval={approval.approvalId}>
      <header>
        <SafetyCertificateOutlined aria-hidden />
        <h4>{title}</h4>
        <Countdown expiresAt={approval.expiresAt} />
      </header>
      {source}
      {form ? (
        <ElicitationForm
          form={form}
          disabled={disabled}
          onSubmit={(values) => void resolve("allow-once", "", values)}
          onDecline={() => void resolve("deny")}
          onDismiss={() => void resolve("dismiss")}
        />
      ) : (
        <ToolApproval approval={approval} disabled={disabled} resolve={resolve} />
      )}
      {!canApprove && <p className="muted">Your token does not have the “approve” scope.</p>}
    </section>
  );
});

function isCommand(approval: ApprovalShape): boolean {
  return typeof approval.details.command === "string";
}

interface ToolApprovalProps {
  approval: ApprovalShape;
  disabled: boolean;
  resolve: Resolve;
}

function ToolApproval({ approval, disabled, resolve }: ToolApprovalProps) {
  const [mode, setMode] = useState<"choose" | "deny" | "edit">("choose");
  const cancel = () => setMode("choose");
  const options = approval.options.filter((option) => option !== "deny" && option !== "dismiss");
  return (
    <>
      {approval.risk && <p className="risk">{toSentence(approval.risk)}</p>}
      {isCommand(approval) && <ExactText text={approval.command} label="Command" />}
      {approval.preview && <Preview text={approval.preview} outdated={mode === "edit"} />}
      <Arguments approval={approval} />
      {mode === "edit" && (
        <EditArguments
          approval={approval}
          disabled={disabled}
          onCancel={cancel}
          onSubmit={(edited) => void resolve("allow-once", "", edited)}
        />
      )}
      {mode === "deny" && (
        <DenyWithReason disabled={disabled} onCancel={cancel} onSubmit={(reason) => void resolve("deny", reason)} />
      )}
      {mode === "choose" && (
        <footer>
          {options.map((option) => (
            <Tooltip key={option} title={ALLOW_OPTIONS[option].hint}>
              <Button
                type={option === "allow-once" ? "primary" : "default"}
                disabled={disabled}
                onClick={() => void resolve(option)}
              >
                {ALLOW_OPTIONS[option].label}
              </Button>
            </Tooltip>
          ))}
          <Button disabled={disabled} onClick={() => setMode("edit")}>
            Edit
          </Button>
          <span className="spacer" />
          <Button type="text" disabled={disabled} onClick={() => setMode("deny")}>
            Deny with reason…
          </Button>
          <Button danger disabled={disabled} onClick={() => void resolve("deny")}>
            Deny
          </Button>
        </footer>
      )}
    </>
  );
}

function Preview({ text, outdated }: { text: string; outdated: boolean }) {
  return (
    <div className={outdated ? "preview outdated" : "preview"}>
      <p className="muted">{outdated ? "Preview of the original call. Your edited call may differ." : "Preview"}</p>
      <ExactText text={text} label="Preview" />
    </div>
  );
}

function Arguments({ approval }: { approval: ApprovalShape }) {
  const shown = Object.entries(approval.details).filter(([name]) => !(isCommand(approval) && name === "command"));
  return (
    <dl>
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            <ExactText text={formatValue(value)} label={name} />
          </dd>
        </div>
      ))}
      {approval.workingDir && (
        <div>
          <dt className="working-directory">Working directory</dt>
          <dd>
            <ExactText text={approval.workingDir} label="Working directory" />
          </dd>
        </div>
      )}
    </dl>
  );
}

interface EditArgumentsProps {
  approval: ApprovalShape;
  disabled: boolean;
  onSubmit: (edited: Record<string, unknown>) => void;
  onCancel: () => void;
}

function EditArguments({ approval, disabled, onSubmit, onCancel }: EditArgumentsProps) {
  const [text, setText] = useState(() => JSON.stringify(approval.details, null, 2));
  const edited = parseObject(text);
  return (
    <div className="editor">
      <Input.TextArea
        aria-label="Arguments (JSON)"
        value={text}
        onChange={(event) => setText(event.target.value)}
        autoSize={{ minRows: 3, maxRows: 16 }}
        status={edited ? "" : "error"}
        className="mono"
        spellCheck={false}
        autoFocus
      />
      <footer>
        <Button type="primary" disabled={disabled || !edited} onClick={() => edited && onSubmit(edited)}>
          Allow edited call
        </Button>
        <Button onClick={onCancel}>Cancel</Button>
        {!edited && <span className="muted">Enter a valid JSON object.</span>}
      </footer>
    </div>
  );
}

function parseObject(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}

interface DenyProps {
  disabled: boolean;
  onSubmit: (reason: string) => void;
  onCancel: () => void;
}

function DenyWithReason({ disabled, onSubmit, onCancel }: DenyProps) {
  const [reason, setReason] = useState("");
  return (
    <div className="editor">
      <Input
        aria-label="Reason"
        placeholder="Reason (sent to the agent and recorded)"
        value={reason}
        maxLength={500}
        onChange={(event) => setReason(event.target.value)}
        onPressEnter={() => onSubmit(reason)}
        autoFocus
      />
      <footer>
        <Button danger type="primary" disabled={disabled} onClick={() => onSubmit(reason)}>
          Deny
        </Button>
        <Button onClick={onCancel}>Cancel</Button>
      </footer>
    </div>
  );
}

const EXPIRES_SOON_MS = 30_000;

function Countdown({ expiresAt }: { expiresAt: number }) {
  const remaining = expiresAt - useNow(1000);
  return (
    <span className={remaining < EXPIRES_SOON_MS ? "countdown soon" : "countdown"}>
      <ClockCircleOutlined aria-hidden />{" "}
      {remaining > 0 ? `Expires in ${formatDuration(Math.ceil(remaining / 1000) * 1000)}` : "Expired"}
    </span>
  );
}
