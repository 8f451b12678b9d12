// Approval card: shows exactly what a tool call would do, and lets the user allow, edit or deny it.

import { ClockCircleOutlined, DownOutlined, SafetyCertificateOutlined } from "@ant-design/icons";
import { Button } from "antd";
import { memo, type ReactNode, useMemo, useRef, useState } from "react";
import { CopyButton } from "../components/buttons";
import { ExactText } from "../components/exact-text";
import { useFeedback } from "../components/feedback";
import { Input } from "../components/input";
import { RouteLink } from "../components/link";
import { DropdownMenu } from "../components/menu";
import { type Diff, parseDiff } from "../state/diff";
import { formatCountdown, formatValue, toSentence } from "../state/format";
import { useAppState, useClient, useNow } from "../state/hooks";
import { describeRule } from "../state/rules";
import type { ApprovalDecision } from "../state/session";
import { toSafeLine } from "../state/unicode-safety";
import type { AgentShape, ApprovalShape } from "../wire";
import { useApprovalKeys } from "./approval-keys";
import { StackCheckbox } from "./approval-stack";
import { DiffTable } from "./diff";
import { ElicitationForm } from "./elicitation";
import "../styles/approval.css";

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
  const { principal, status, agents } = useAppState();
  const { message: toast } = useFeedback();
  const [busy, setBusy] = useState(false);
  const card = useRef<HTMLElement>(null);
  const resolve: Resolve = async (decision, reason = "", edited) => {
    setBusy(true);
    try {
      await client.resolveApproval(approval, decision, reason, edited);
    } catch (error) {
      toast.warning((error as Error).message);
      setBusy(false);
    }
  };
  const canApprove = principal?.scopes.includes("approve") ?? false;
  const disabled = busy || !canApprove || status !== "online";
  const { form } = approval;
  useApprovalKeys(card, !form && !disabled, (allowed) => void resolve(allowed ? "allow-once" : "deny"));
  const title = approvalTitle(approval, agents);
  return (
    <section ref={card} className="approval" aria-label={title} data-approval={approval.approvalId} tabIndex={-1}>
      <header>
        <StackCheckbox approval={approval} label={title} />
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
      {!canApprove && <p className="muted">You can’t approve actions.</p>}
    </section>
  );
});

/** Say who wants to do what. */
function approvalTitle(
  { agentId, details, form, kind, summary, toolName }: ApprovalShape,
  agents: AgentShape[],
): string {
  if (form) return toSafeLine(summary);
  const who = toSafeLine(agents.find(({ id }) => id === agentId)?.name || agentId || "The agent");
  const [server, tool] = toolName.includes("/") ? toolName.split("/", 2) : [];
  if (kind === "command") return `${who} wants to run a command`;
  if (kind === "code") return `${who} wants to run code`;
  if (kind === "file") return `${who} wants to change ${toSafeLine(String(details.path ?? "a file"))}`;
  return server ? `${who} wants to use ${tool} from ${server}` : `${who} wants to use ${toolName}`;
}

interface ToolApprovalProps {
  approval: ApprovalShape;
  disabled: boolean;
  resolve: Resolve;
}

function ToolApproval({ approval, disabled, resolve }: ToolApprovalProps) {
  const [mode, setMode] = useState<"choose" | "deny" | "edit">("choose");
  const cancel = () => setMode("choose");
  const subject = approval.kind === "command" ? "command" : "call";
  const standing = [
    { key: "allow-session" as const, label: `This exact ${subject} in this chat` },
    { key: "allow-always" as const, label: `This exact ${subject} always` },
  ].filter(({ key }) => approval.options?.includes(key));
  const risk = approval.risk.replace(approval.rule ?? "", "").replace(/; $/, "");
  return (
    <>
      {risk && <p className="risk">{toSentence(risk)}</p>}
      <Content approval={approval} outdated={mode === "edit"} />
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
          <Button type="primary" disabled={disabled} onClick={() => void resolve("allow-once")}>
            Allow once <Key name="y" />
          </Button>
          {standing.length > 0 && (
            <DropdownMenu items={standing} onSelect={(key) => void resolve(key as ApprovalDecision)}>
              <Button disabled={disabled}>
                Allow… <DownOutlined aria-hidden />
              </Button>
            </DropdownMenu>
          )}
          <Button disabled={disabled} onClick={() => setMode("edit")}>
            Edit
          </Button>
          <span className="spacer" />
          <Button danger disabled={disabled} onClick={() => void resolve("deny")}>
            Deny <Key name="n" />
          </Button>
          <Button type="text" disabled={disabled} onClick={() => setMode("deny")}>
            Deny…
          </Button>
        </footer>
      )}
    </>
  );
}

const Key = ({ name }: { name: string }) => <kbd aria-hidden>{name}</kbd>;

/** What the call would do, and what confines it. Everything appears once. */
function Content({ approval, outdated }: { approval: ApprovalShape; outdated: boolean }) {
  const { kind = "tool", sandbox = "", preview = "", details } = approval;
  const { diff, limits, body } = useMemo(() => readPreview(preview, sandbox), [preview, sandbox]);
  const command =
    kind === "command"
      ? textOf(details.command) || body || approval.command
      : kind === "code"
        ? textOf(details.code)
        : "";
  const shown = new Set([
    ...(command ? [kind === "code" ? "code" : "command"] : []),
    ...(limits.length ? (["cwd", "timeout", ...(command ? ["argv"] : [])] as const) : []),
    ...(diff ? ["path", "content", "old", "new"] : []),
  ]);
  const rest = Object.entries(details).filter(([name]) => !shown.has(name));
  const hasFolder = limits.some(({ label }) => label === "Folder");
  return (
    <div className="content">
      {outdated && preview && <p className="muted">Shows the original call. Your edited call may differ.</p>}
      {command && (
        <div className="command">
          <ExactText text={command} label={kind === "code" ? "Code" : "Command"} />
          <CopyButton text={command} label={kind === "code" ? "Copy code" : "Copy command"} />
        </div>
      )}
      {diff && <FileChange diff={diff} />}
      {!diff && !limits.length && preview && (
        <div className="preview">
          <p className="muted">Changes</p>
          <ExactText text={preview} label="Changes" />
        </div>
      )}
      <dl>
        {limits.map(({ label, text }, index) => (
          <Fact key={index} label={label} warning={label === "No sandbox"}>
            {text}
          </Fact>
        ))}
        {command && !sandbox && <Fact label="Sandbox">This tool doesn’t declare a sandbox.</Fact>}
        {approval.workingDir && !hasFolder && !diff && <Fact label="Folder">{approval.workingDir}</Fact>}
        {rest.map(([name, value]) => (
          <div key={name}>
            <dt className="mono">{toSafeLine(name)}</dt>
            <dd>
              <ExactText text={formatValue(value)} label={name} />
            </dd>
          </div>
        ))}
      </dl>
      {approval.toolName.includes("/") && <p className="muted">Text from this server is not verified.</p>}
      <Why approval={approval} />
      {diff && (
        <details className="why">
          <summary>All arguments</summary>
          <ExactText text={formatValue(details)} label="All arguments" />
        </details>
      )}
    </div>
  );
}

function Fact({ label, warning = false, children }: { label: string; warning?: boolean; children: string }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd className={warning ? "fact warning" : "fact"}>{toSafeLine(children, 2000)}</dd>
    </div>
  );
}

function FileChange({ diff }: { diff: Diff }) {
  return (
    <div className="preview">
      {diff.notes.filter(Boolean).map((note) => (
        <p key={note} className="risk">
          {toSafeLine(note, 400)}
        </p>
      ))}
      <p className="muted">
        Changes <span className="added">+{diff.added}</span> <span className="removed">−{diff.removed}</span>
      </p>
      <DiffTable diff={diff} />
    </div>
  );
}

function Why({ approval: { rule, toolName } }: { approval: ApprovalShape }) {
  const admin = useAppState().principal?.scopes.includes("admin") ?? false;
  return (
    <details className="why">
      <summary>Why am I asked?</summary>
      {rule ? (
        <p>
          Rule: {toSafeLine(describeRule(rule))}.{" "}
          {admin && <RouteLink to={{ view: "settings", id: "permissions" }}>View permissions</RouteLink>}
        </p>
      ) : (
        <p>{toSafeLine(toolName)} asks before it acts.</p>
      )}
    </details>
  );
}

interface Preview {
  diff?: Diff;
  /** What confines the call, as the tool reports it. */
  limits: { label: string; text: string }[];
  /** The command or the code that follows the limits. */
  body: string;
}

/** Split a preview. If the call is bound to a sandbox, its first lines describe that sandbox and the limits. */
function readPreview(preview: string, sandbox: string): Preview {
  if (!sandbox) return { diff: parseDiff(preview), limits: [], body: "" };
  const end = preview.indexOf("\n\n");
  const lines = (end < 0 ? preview : preview.slice(0, end)).split("\n");
  const limits = lines.map((line) => {
    const [label = "", ...text] = line.split(": ");
    return { label, text: text.join(": ") };
  });
  return { limits, body: end < 0 ? "" : preview.slice(end + 2) };
}

const textOf = (value: unknown): string => (typeof value === "string" ? value : "");

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
        placeholder="Reason (optional, the agent will see it)"
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
      {remaining > 0 ? `Expires in ${formatCountdown(remaining)}` : "Expired without an answer: denied."}
    </span>
  );
}
