// Details of one job: its status, task, result and runs. Also the parts that the list of jobs shares.

import { ArrowLeftOutlined, ArrowRightOutlined, RedoOutlined, StopOutlined } from "@ant-design/icons";
import { Alert, App, Button, Space, Tag, Tooltip } from "antd";
import { type MouseEvent, type ReactNode, useEffect, useState } from "react";
import { ExactText } from "../components/exact-text";
import { RouteLink } from "../components/link";
import { navigate } from "../layout/router";
import { Markdown } from "../markdown/markdown";
import { formatDateTime, formatDuration } from "../state/format";
import { useAppState, useClient, useJobUpdates, useNow, useQuery } from "../state/hooks";
import {
  formatAttempts,
  formatDeadline,
  isOpenJob,
  JOB_STATES,
  type JobState,
  jobAction,
  jobError,
  jobRequester,
  PRIORITY_LABELS,
} from "../state/jobs";
import type { JobShape } from "../wire";
import { QueryResult, RunStatusTag, View } from "./view";

export function JobDetails({ id }: { id: string }) {
  useQuery("jobs.list", { limit: 1 }); // subscribes to job updates
  const query = useQuery("jobs.get", { jobId: id });
  const update = useJobUpdates().get(id);
  const job = update ?? query.data?.job;
  return (
    <View
      title="Job details"
      description={
        job
          ? `Requested by ${jobRequester(job)}, assigned to ${job.agentId}, created ${formatDateTime(job.createdAt)}`
          : "Task, result and runs of this job."
      }
      controls={
        <Space wrap>
          {job && <JobActionButton job={job} />}
          <Button icon={<ArrowLeftOutlined aria-hidden />} onClick={() => navigate({ view: "jobs", id: "" })}>
            All jobs
          </Button>
        </Space>
      }
    >
      <QueryResult query={query} what="this job">
        {(data) => <JobContent job={update ?? data.job} />}
      </QueryResult>
    </View>
  );
}

function JobContent({ job }: { job: JobShape }) {
  const now = useNow(1000);
  return (
    <div className="stack job">
      <dl className="facts">
        <Fact name="Status">
          <JobStateTag state={job.state} />
        </Fact>
        <Fact name="Attempts">{formatAttempts(job, now) || "None yet"}</Fact>
        <Fact name="Priority">
          <PriorityLabel priority={job.priority} />
        </Fact>
        <Fact name="Deadline">{formatDeadline(job, now) || "None"}</Fact>
        <Fact name="Duration">
          {isOpenJob(job) || !job.endedAt ? "…" : formatDuration(job.endedAt - job.createdAt)}
        </Fact>
        <Fact name="Requested by">
          <Requester job={job} />
        </Fact>
        <Fact name="Assigned to">{job.agentId}</Fact>
        <Fact name="Chat">
          {job.attempts ? <RouteLink to={{ view: "chat", id: job.sessionKey }}>Open</RouteLink> : "Not started"}
        </Fact>
        {job.parent && (
          <Fact name="Parent job">
            <RouteLink to={{ view: "jobs", id: job.parent }}>View</RouteLink>
          </Fact>
        )}
      </dl>
      <p className="muted">{JOB_STATES[job.state].description}</p>
      <JobError job={job} />
      <h2 className="section-title">Task</h2>
      <ExactText text={job.task} label="Task" />
      {job.result && job.state === "done" && (
        <>
          <h2 className="section-title">Result</h2>
          <div className="panel">
            <Markdown text={job.result} />
          </div>
        </>
      )}
      <JobRuns job={job} />
    </div>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Requester({ job }: { job: JobShape }) {
  const name = jobRequester(job);
  if (job.kind === "schedule")
    return (
      <RouteLink to={{ view: "schedules", id: "" }} title="View schedules">
        {name}
      </RouteLink>
    );
  if (!job.askerSession) return name;
  return (
    <RouteLink to={{ view: "chat", id: job.askerSession }} title="View chat">
      {name}
    </RouteLink>
  );
}

function JobError({ job }: { job: JobShape }) {
  const error = jobError(job);
  if (!error) return null;
  if (isOpenJob(job)) return <Alert type="warning" showIcon title={`Last attempt: ${error}`} />;
  return <Alert type={job.state === "failed" || job.state === "dead" ? "error" : "info"} showIcon title={error} />;
}

/** The runs of the job's session: one for each attempt and each result of a delegated job. */
function JobRuns({ job: { sessionKey, state, attempts } }: { job: JobShape }) {
  const { data, reload } = useQuery("runs.list", { sessionKey, limit: 50 });
  // biome-ignore lint/correctness/useExhaustiveDependencies: a change of the job's state means a new or ended run
  useEffect(() => reload(), [state, attempts, reload]);
  const runs = data?.runs ?? [];
  if (runs.length === 0) return null;
  return (
    <>
      <h2 className="section-title">Runs</h2>
      <ul className="run-list">
        {runs.map((run) => (
          <li key={run.runId}>
            <RouteLink to={{ view: "runs", id: run.runId }}>{formatDateTime(run.createdAt)}</RouteLink>
            <RunStatusTag status={run.status} />
            {run.endedAt && <span className="muted">{formatDuration(run.endedAt - run.createdAt)}</span>}
          </li>
        ))}
      </ul>
    </>
  );
}

export const JobStateTag = ({ state }: { state: JobState }) => (
  <Tag color={JOB_STATES[state].color}>{JOB_STATES[state].label}</Tag>
);

export function PriorityLabel({ priority }: { priority: JobShape["priority"] }) {
  const className = { low: "faint", normal: "faint", high: "warning", urgent: "error" }[priority];
  return <span className={className}>{PRIORITY_LABELS[priority]}</span>;
}

export const RequesterAndAgent = ({ job }: { job: JobShape }) => (
  <>
    {jobRequester(job)} <ArrowRightOutlined className="arrow" role="img" aria-label="to" /> {job.agentId}
  </>
);

/** Cancels an open job, or retries one that ended without a result. */
export function JobActionButton({ job, size = "middle" }: { job: JobShape; size?: "small" | "middle" }) {
  const client = useClient();
  const { principal, status } = useAppState();
  const { message: toast } = App.useApp();
  const [busy, setBusy] = useState(false);
  const action = jobAction(job);
  if (!action) return null;
  const perform = (event: MouseEvent) => {
    event.stopPropagation(); // a click on the row opens the job
    setBusy(true);
    client
      .request(`jobs.${action}`, { jobId: job.jobId })
      .catch((error: Error) => void toast.warning(error.message))
      .finally(() => setBusy(false));
  };
  const canWrite = principal?.scopes.includes("write") ?? false;
  const { label, hint, icon } = ACTIONS[action];
  return (
    <Tooltip title={canWrite ? hint : "You have view-only access."}>
      <Button
        size={size}
        disabled={!canWrite || busy || status !== "online"}
        icon={size === "small" ? undefined : icon}
        onClick={perform}
      >
        {label}
      </Button>
    </Tooltip>
  );
}

const ACTIONS = {
  cancel: { label: "Cancel", hint: "Cancel this job and the jobs it delegated", icon: <StopOutlined aria-hidden /> },
  retry: { label: "Retry", hint: "Queue this job again", icon: <RedoOutlined aria-hidden /> },
};
