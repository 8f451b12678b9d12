// One job: what was asked, by whom, how it stands, what came of it, and the turns behind it.

import { ArrowLeftOutlined, ArrowRightOutlined, RedoOutlined, StopOutlined } from "@ant-design/icons";
import { Alert, App, Button, Space, Tag, Tooltip } from "antd";
import { type MouseEvent, type ReactNode, useEffect, useState } from "react";
import { Exact } from "../chat/exact";
import { Markdown } from "../markdown/markdown";
import { Inside } from "../shell/link";
import { go } from "../shell/route";
import { askerOf, choiceOf, deadlineOf, isOpen, JOB_STATES, type JobState, triesOf, troubleOf } from "../state/jobs";
import { useAsked, useAtlas, useHouse, useJobNews, useNow } from "../state/use";
import { momentOf, spanOf } from "../state/words";
import type { JobShape } from "../wire";
import { Frame, Shown } from "./frame";
import { RunTag } from "./runtag";

export function OneJob({ id }: { id: string }) {
  useAsked("jobs.list", { limit: 1 }); // who asks for a list hears what changes
  const asked = useAsked("jobs.get", { jobId: id });
  const told = useJobNews().get(id);
  const job = told ?? asked.answer?.job;
  return (
    <Frame
      title="One job"
      about={
        job
          ? `${momentOf(job.createdAt)}, ${askerOf(job)} asked ${job.agentId}`
          : "What was asked, and what came of it."
      }
      extra={
        <Space wrap>
          {job && <JobAct job={job} />}
          <Button icon={<ArrowLeftOutlined aria-hidden />} onClick={() => go({ view: "jobs", id: "" })}>
            All jobs
          </Button>
        </Space>
      }
    >
      <Shown asked={asked}>{(found) => <Whole job={told ?? found.job} />}</Shown>
    </Frame>
  );
}

function Whole({ job }: { job: JobShape }) {
  const now = useNow(1000);
  const facts: [string, ReactNode][] = [
    ["State", <StateTag state={job.state} />],
    ["Tries", triesOf(job, now) || "none yet"],
    ["Priority", <Priority priority={job.priority} />],
    ["Deadline", deadlineOf(job, now) || "none"],
    ["Took", isOpen(job) || !job.endedAt ? "…" : spanOf(job.endedAt - job.createdAt)],
    ["Asked by", <Asker job={job} />],
    ["Done by", job.agentId],
    ["Session", job.attempts ? <Inside to={{ view: "chat", id: job.sessionKey }}>open</Inside> : "not begun"],
    ...(job.parent
      ? [["Part of", <Inside to={{ view: "jobs", id: job.parent }}>another job</Inside>] as [string, ReactNode]]
      : []),
  ];
  return (
    <div className="stack job">
      <dl className="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <p className="quiet">{JOB_STATES[job.state].about}</p>
      <Failure job={job} />
      <h2 className="section">Task</h2>
      <Exact text={job.task} label="Task" />
      {job.result && job.state === "done" && (
        <>
          <h2 className="section">Result</h2>
          <div className="panel">
            <Markdown text={job.result} />
          </div>
        </>
      )}
      <Turns job={job} />
    </div>
  );
}

function Asker({ job }: { job: JobShape }) {
  const who = askerOf(job);
  if (job.kind === "schedule")
    return (
      <Inside to={{ view: "jobs", id: "schedules" }} title="Schedules">
        {who}
      </Inside>
    );
  return job.askerSession ? (
    <Inside to={{ view: "chat", id: job.askerSession }} title="Where it was asked">
      {who}
    </Inside>
  ) : (
    who
  );
}

function Failure({ job }: { job: JobShape }) {
  const trouble = troubleOf(job);
  if (!trouble) return null;
  if (isOpen(job)) return <Alert type="warning" showIcon title={`The last try: ${trouble}`} />;
  return <Alert type={job.state === "failed" || job.state === "dead" ? "error" : "info"} showIcon title={trouble} />;
}

/** The turns of the job's session: one for every try, and for every answer that it waited for. */
function Turns({ job: { sessionKey, state, attempts } }: { job: JobShape }) {
  const asked = useAsked("runs.list", { sessionKey, limit: 50 });
  useEffect(() => asked.again(), [state, attempts, asked.again]);
  const runs = asked.answer?.runs ?? [];
  if (runs.length === 0) return null;
  return (
    <>
      <h2 className="section">{runs.length === 1 ? "The turn behind it" : "The turns behind it"}</h2>
      <ul className="turns">
        {runs.map((run) => (
          <li key={run.runId}>
            <Inside to={{ view: "runs", id: run.runId }}>{momentOf(run.createdAt)}</Inside>
            <RunTag status={run.status} />
            {run.endedAt && <span className="quiet">{spanOf(run.endedAt - run.createdAt)}</span>}
          </li>
        ))}
      </ul>
    </>
  );
}

export const StateTag = ({ state }: { state: JobState }) => (
  <Tag color={JOB_STATES[state].colour}>{JOB_STATES[state].words}</Tag>
);

export function Priority({ priority }: { priority: JobShape["priority"] }) {
  return <span className={{ low: "faint", normal: "faint", high: "wait", urgent: "bad" }[priority]}>{priority}</span>;
}

export const Who = ({ job }: { job: JobShape }) => (
  <>
    {askerOf(job)} <ArrowRightOutlined className="to" role="img" aria-label="asked" /> {job.agentId}
  </>
);

/** Stops an open job, has one tried again that was not done; one that is done can be left alone. */
export function JobAct({ job, size = "middle" }: { job: JobShape; size?: "small" | "middle" }) {
  const atlas = useAtlas();
  const { principal, link } = useHouse();
  const { message } = App.useApp();
  const [busy, setBusy] = useState(false);
  const choice = choiceOf(job);
  if (!choice) return null;
  const act = (event: MouseEvent) => {
    event.stopPropagation(); // the row below opens the job
    setBusy(true);
    atlas
      .ask(`jobs.${choice}`, { jobId: job.jobId })
      .catch((error: Error) => void message.warning(error.message))
      .finally(() => setBusy(false));
  };
  const may = principal?.scopes.includes("write") ?? false;
  return (
    <Tooltip
      title={
        may
          ? choice === "cancel"
            ? "Stops it, and what was asked for in it"
            : "Puts it back in the queue"
          : "Your token may only look."
      }
    >
      <Button
        size={size}
        disabled={!may || busy || link !== "online"}
        icon={
          size === "small" ? undefined : choice === "cancel" ? (
            <StopOutlined aria-hidden />
          ) : (
            <RedoOutlined aria-hidden />
          )
        }
        onClick={act}
      >
        {choice === "cancel" ? "Cancel" : "Try again"}
      </Button>
    </Tooltip>
  );
}
