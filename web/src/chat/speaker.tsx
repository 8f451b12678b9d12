// Who speaks: the heading of an answer, a hand-off between agents, and what jobs, schedules and channels sent.

import { ClockCircleOutlined, SwapOutlined } from "@ant-design/icons";
import { memo, useState } from "react";
import { RouteLink } from "../components/link";
import { Avatar, useAgentName, useSpeaker } from "../components/speaker";
import { Markdown } from "../markdown/markdown";
import { messageText } from "../state/conversation";
import { formatTime } from "../state/format";
import { toSafeLine } from "../state/unicode-safety";
import type { MessageShape, OriginShape } from "../wire";

export const SpeakerHeading = memo(function SpeakerHeading(props: { agentId: string; model?: string; at?: number }) {
  const { agentId, model, at } = props;
  const { id, name } = useSpeaker(agentId);
  return (
    <div className="speaker">
      <Avatar id={id} name={name} />
      <strong>{name}</strong>
      {model && <span className="muted">{toSafeLine(model, 60)}</span>}
      {at !== undefined && <time dateTime={new Date(at).toISOString()}>{formatTime(at)}</time>}
    </div>
  );
});

/** A hand-off, and who speaks from here on. */
export const Handoff = memo(function Handoff({ from, to, note }: { from: string; to: string; note: string }) {
  const [before, after] = [useAgentName(from), useAgentName(to)];
  return (
    <>
      <p className="handoff">
        <SwapOutlined aria-hidden /> {before} handed off to {after}
        {note && `: “${toSafeLine(note, 300)}”`}
      </p>
      <SpeakerHeading agentId={to} />
    </>
  );
});

const OUTCOMES: Record<string, string> = {
  done: "Job finished",
  failed: "Job failed",
  dead: "Job failed",
  cancelled: "Job cancelled",
  expired: "Job missed its deadline",
};

const PREVIEW_LINES = 6;

/** A message that a job or a schedule sent: the outcome of a delegated job, or the task of this session. */
export const JobMessage = memo(function JobMessage({
  message,
  origin,
}: {
  message: MessageShape;
  origin: OriginShape;
}) {
  const [expanded, setExpanded] = useState(false);
  const agent = useAgentName(origin.agentId ?? "");
  const { task, text } = readReport(messageText([message]), origin.state ?? "");
  const lines = text.split("\n");
  const long = lines.length > PREVIEW_LINES;
  const title = origin.state
    ? (OUTCOMES[origin.state] ?? "Job ended")
    : origin.kind === "schedule"
      ? "Scheduled task"
      : origin.agentId
        ? `Task from ${agent}`
        : "Task";
  return (
    <article className="job-message" aria-label={title} data-message={message.id} data-state={origin.state}>
      <header>
        <ClockCircleOutlined aria-hidden />
        <strong>{title}</strong>
        {origin.state && <span>{agent}</span>}
        {task && <span className="task">{toSafeLine(task)}</span>}
        <RouteLink to={origin.kind === "schedule" ? { view: "schedules", id: "" } : { view: "jobs", id: origin.id }}>
          {origin.kind === "schedule" ? "Open schedules" : "Open job"}
        </RouteLink>
      </header>
      {text && (
        <Markdown text={expanded || !long ? text : lines.slice(0, PREVIEW_LINES).join("\n")} streaming={false} />
      )}
      {long && (
        <button type="button" className="more" aria-expanded={expanded} onClick={() => setExpanded(!expanded)}>
          {expanded ? "Show less" : `Show all ${lines.length} lines`}
        </button>
      )}
    </article>
  );
});

const TASK = /\n\n\(Task: ([\s\S]*)\)$/;

/** Split the report of a job, which an agent reads as one text, into the task and the result. */
function readReport(report: string, state: string): { task: string; text: string } {
  if (!state) return { task: "", text: report };
  const task = TASK.exec(report);
  const text = task ? report.slice(0, task.index) : report;
  const result = state === "done" ? text.indexOf("\n\n") : -1;
  return { task: task?.[1] ?? "", text: result < 0 ? text : text.slice(result + 2) };
}
