// Card of a tool call: arguments, live output, result, and the approval if one is pending.

import {
  CheckCircleFilled,
  CloseCircleFilled,
  LoadingOutlined,
  PauseCircleFilled,
  QuestionCircleFilled,
  RightOutlined,
} from "@ant-design/icons";
import { memo, type ReactNode, useLayoutEffect, useMemo, useRef, useState } from "react";
import { CopyButton } from "../components/buttons";
import { ReadText } from "../components/exact-text";
import { RouteLink } from "../components/link";
import type { ToolCallView } from "../state/conversation";
import { formatDuration, formatIdentifier, formatValue, summarizeArguments } from "../state/format";
import { useAppState } from "../state/hooks";
import { extractImages } from "../state/images";
import type { ToolCallStatus } from "../state/session";
import { lastLines, type OutputBuffer } from "../state/tool-output";
import { toSafeLine } from "../state/unicode-safety";
import { ApprovalCard } from "./approval";
import { StackBar } from "./approval-stack";
import { ImageThumbnail } from "./image";

const ICONS: Record<ToolCallStatus, ReactNode> = {
  called: <LoadingOutlined />,
  running: <LoadingOutlined />,
  "needs-approval": <PauseCircleFilled className="warning" />,
  ok: <CheckCircleFilled className="success" />,
  error: <CloseCircleFilled className="error" />,
  unknown: <QuestionCircleFilled className="warning" />,
};

const ERROR_LABELS: Record<string, string> = {
  bad_arguments: "Invalid arguments",
  timeout: "Timed out",
  limited: "Limit exceeded",
  declined: "Denied",
};

const DECISION_LABELS: Record<string, string> = { deny: "Denied", dismiss: "Dismissed" };

/** Who decided about the call, and why. */
function Decided({ call }: { call: ToolCallView }) {
  const { principal } = useAppState();
  const who = call.by && (call.by === principal?.id ? "you" : toSafeLine(call.by));
  const { reason } = (call.result ?? {}) as { reason?: unknown };
  return (
    <p className="muted decided">
      {DECISION_LABELS[call.decision ?? ""] ?? "Allowed"}
      {who && ` by ${who}`}
      {call.decision === "deny" && typeof reason === "string" && `: “${toSafeLine(reason, 500)}”`}
      <AuditLink call={call} separator=" · " />
    </p>
  );
}

/** Link to the entry of a call that has ended. A guest cannot read the audit log. */
function AuditLink({ call, separator = "" }: { call: ToolCallView; separator?: string }) {
  const { principal } = useAppState();
  if (principal?.sessions === "own" || !call.runId || (call.status !== "ok" && call.status !== "error")) return null;
  return (
    <>
      {separator}
      <RouteLink to={{ view: "audit", id: `${call.runId}:${call.id}` }}>View in audit log</RouteLink>
    </>
  );
}

export const ToolCallCard = memo(function ToolCallCard({ call }: { call: ToolCallView }) {
  const [expanded, setExpanded] = useState(false);
  const { rest, images } = useMemo(() => extractImages(call.result), [call.result]);
  const running = call.status === "running";
  const hasOutput = call.progress.text !== "";
  return (
    <div className={`tool-call is-${call.status}`} data-call={call.id} data-status={call.status}>
      <button type="button" aria-expanded={expanded} onClick={() => setExpanded(!expanded)}>
        <span className="icon" aria-hidden>
          {ICONS[call.status]}
        </span>
        <code className="name">{toSafeLine(call.name)}</code>
        <span className="summary">{summarizeArguments(call.arguments)}</span>
        <span className="status">{statusText(call)}</span>
        <RightOutlined className="chevron" rotate={expanded ? 90 : 0} aria-hidden />
      </button>
      {running && hasOutput && !expanded && <ToolOutput output={call.progress} live />}
      {images.length > 0 && (
        <div className="images">
          {images.map((image, index) => (
            <ImageThumbnail key={index} image={image} label={`Image from ${call.name}`} />
          ))}
        </div>
      )}
      {expanded && (
        <div className="tool-call-body">
          <Section label="Arguments" text={formatValue(call.arguments)} />
          {hasOutput && (
            <Section label="Output" text={call.progress.text}>
              <ToolOutput output={call.progress} live={running} />
            </Section>
          )}
          {call.result !== undefined && (
            <Section label={call.status === "ok" ? "Result" : "Error"} text={formatValue(rest)} />
          )}
          {!call.decision && <AuditLink call={call} />}
        </div>
      )}
      {call.decision && <Decided call={call} />}
      {call.approval && <StackBar approval={call.approval} />}
      {call.approval && <ApprovalCard approval={call.approval} />}
    </div>
  );
});

function statusText(call: ToolCallView): string {
  if (call.status === "needs-approval") return call.approval?.form ? "Needs input" : "Needs approval";
  if (call.status === "called" || call.status === "running") return "Running";
  if (call.status === "unknown") return "Outcome unknown";
  const duration = call.durationMs === undefined ? "" : formatDuration(call.durationMs);
  if (call.status === "ok") return duration;
  const error = call.error ? (ERROR_LABELS[call.error] ?? formatIdentifier(call.error)) : "Failed";
  return duration ? `${error} · ${duration}` : error;
}

const MAX_SHOWN_LENGTH = 20_000;

/** A labelled text with a copy button; `children` replace the text. */
function Section({ label, text, children }: { label: string; text: string; children?: ReactNode }) {
  const shown =
    text.length > MAX_SHOWN_LENGTH
      ? `${text.slice(0, MAX_SHOWN_LENGTH)}\n… ${text.length - MAX_SHOWN_LENGTH} more characters`
      : text || "(empty)";
  return (
    <div className="labeled-block">
      <div className="label">
        <span>{label}</span>
        <CopyButton text={text} label={`Copy ${label.toLowerCase()}`} />
      </div>
      {children ?? (
        <pre tabIndex={0}>
          <ReadText text={shown} />
        </pre>
      )}
    </div>
  );
}

const LIVE_LINES = 400;
const FOLLOW_THRESHOLD_PX = 24;

/** Output of a tool. Follows new lines unless the user has scrolled up. */
const ToolOutput = memo(function ToolOutput({ output, live }: { output: OutputBuffer; live: boolean }) {
  const box = useRef<HTMLPreElement>(null);
  const following = useRef(true);
  const shown = live ? lastLines(output.text, LIVE_LINES) : output.text;
  // biome-ignore lint/correctness/useExhaustiveDependencies: every change of the text may add lines to follow
  useLayoutEffect(() => {
    if (following.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  const handleScroll = () => {
    if (!box.current) return;
    const { scrollTop, clientHeight, scrollHeight } = box.current;
    following.current = scrollTop + clientHeight > scrollHeight - FOLLOW_THRESHOLD_PX;
  };
  return (
    <pre
      ref={box}
      className={live ? "output live" : "output"}
      tabIndex={0}
      role="log"
      aria-label="Tool output"
      aria-live="off"
      onScroll={handleScroll}
    >
      {(output.truncated || shown.length < output.text.trimEnd().length) && (
        <span className="faint">… earlier lines omitted{"\n"}</span>
      )}
      <ReadText text={shown} />
    </pre>
  );
});
