// A call of a tool as a card: what was asked, how far it is, what came of it.

import {
  CheckCircleFilled,
  CloseCircleFilled,
  LoadingOutlined,
  PauseCircleFilled,
  QuestionCircleFilled,
  RightOutlined,
} from "@ant-design/icons";
import { memo, type ReactNode, useMemo, useState } from "react";
import { CopyButton } from "../markdown/code";
import { parted } from "../state/pictures";
import type { CallView } from "../state/turns";
import { gistOf, spanOf, textOf } from "../state/words";
import { Approval } from "./approval";
import { Picture } from "./picture";
import { Tail } from "./tail";

const ICONS: Record<CallView["state"], ReactNode> = {
  called: <LoadingOutlined />,
  running: <LoadingOutlined />,
  asking: <PauseCircleFilled className="wait" />,
  ok: <CheckCircleFilled className="good" />,
  error: <CloseCircleFilled className="bad" />,
  unknown: <QuestionCircleFilled className="wait" />,
};

const FAULTS: Record<string, string> = {
  declined: "declined",
  not_permitted: "not permitted",
  bad_arguments: "wrong arguments",
  timeout: "took too long",
  limited: "over a limit",
  cancelled: "stopped",
};

export const ToolCard = memo(function ToolCard({ call }: { call: CallView }) {
  const [open, setOpen] = useState(false);
  const { rest, pictures } = useMemo(() => parted(call.result), [call.result]);
  const said = call.progress.text !== "";
  return (
    <div className={`tool is-${call.state}`} data-call={call.id} data-state={call.state}>
      <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span className="icon" aria-hidden>
          {ICONS[call.state]}
        </span>
        <code className="name">{call.name}</code>
        <span className="gist">{gistOf(call.arguments)}</span>
        <span className="state">{stateOf(call)}</span>
        <RightOutlined className="fold" rotate={open ? 90 : 0} aria-hidden />
      </button>
      {call.state === "running" && said && !open && <Tail lines={call.progress} live />}
      {pictures.length > 0 && (
        <div className="pictures">
          {pictures.map((picture, place) => (
            <Picture key={place} picture={picture} what={`Picture from ${call.name}`} />
          ))}
        </div>
      )}
      {open && (
        <div className="inside">
          <Labelled label="Arguments" value={call.arguments} />
          {said && (
            <div className="labelled">
              <div className="label">
                <span>On the way</span>
                <CopyButton text={call.progress.text} what="Copy: On the way" />
              </div>
              <Tail lines={call.progress} live={call.state === "running"} />
            </div>
          )}
          {call.result !== undefined && (
            <Labelled label={call.state === "ok" ? "Result" : "What went wrong"} value={rest} />
          )}
          {call.decision && (
            <p className="quiet">
              {DECIDED[call.decision] ?? "Allowed"}
              {call.by ? ` by ${call.by}` : ""}
            </p>
          )}
        </div>
      )}
      {call.approval && <Approval approval={call.approval} />}
    </div>
  );
});

const DECIDED: Record<string, string> = { deny: "Denied", dismiss: "Left unanswered" };

function stateOf(call: CallView): string {
  if (call.state === "asking") return "waits for you";
  if (call.state === "called" || call.state === "running") return "running";
  if (call.state === "unknown") return "outcome unknown";
  const took = call.durationMs === undefined ? "" : spanOf(call.durationMs);
  if (call.state === "ok") return took;
  const fault = call.error ? (FAULTS[call.error] ?? call.error.replaceAll("_", " ")) : "failed";
  return took ? `${fault} · ${took}` : fault;
}

const LONGEST = 20_000;

function Labelled({ label, value }: { label: string; value: unknown }) {
  const text = textOf(value);
  return (
    <div className="labelled">
      <div className="label">
        <span>{label}</span>
        <CopyButton text={text} what={`Copy: ${label}`} />
      </div>
      <pre tabIndex={0}>
        {text.length > LONGEST
          ? `${text.slice(0, LONGEST)}\n… ${text.length - LONGEST} more characters`
          : text || "nothing"}
      </pre>
    </div>
  );
}
