// Jobs: a live list of delegated and scheduled tasks.

import { CarryOutOutlined } from "@ant-design/icons";
import { Select, Table } from "antd";
import { useState } from "react";
import { RouteLink } from "../components/link";
import { navigate } from "../layout/router";
import { formatTimeOrDate } from "../state/format";
import { useJobUpdates, useNow, usePages } from "../state/hooks";
import {
  formatAttempts,
  formatDeadline,
  isOpenJob,
  JOB_STATES,
  type JobState,
  jobError,
  mergeJobs,
} from "../state/jobs";
import { toSafeLine } from "../state/unicode-safety";
import type { JobShape } from "../wire";
import { JobActionButton, JobDetails, JobStateTag, PriorityLabel, RequesterAndAgent } from "./job-details";
import { EmptyState, JOB_TABS, LoadError, ShowMore, View } from "./view";

const DEADLINE_SOON_MS = 600_000;
const STATE_OPTIONS = (Object.keys(JOB_STATES) as JobState[]).map((value) => ({
  value,
  label: JOB_STATES[value].label,
}));

export default function Jobs({ id }: { id: string }) {
  if (id) return <JobDetails key={id} id={id} />;
  return (
    <View title="Jobs" description="Delegated and scheduled work." tabs={JOB_TABS}>
      <JobList />
    </View>
  );
}

function JobList() {
  const [state, setState] = useState<JobState>();
  const { jobs, hasMore, loadMore, loading, error, reload } = useJobs(state);
  const now = useNow(5000);
  return (
    <>
      <div className="filters">
        <Select
          allowClear
          placeholder="All statuses"
          aria-label="Status"
          value={state}
          onChange={setState}
          options={STATE_OPTIONS}
        />
      </div>
      {error && <LoadError what="jobs" reason={error} onRetry={reload} />}
      {!loading && !error && jobs.length === 0 ? (
        <NoJobs state={state} />
      ) : (
        <Table
          size="small"
          rowKey="jobId"
          className="jobs phone-cards"
          loading={loading && jobs.length === 0}
          dataSource={jobs}
          pagination={false}
          tableLayout="fixed"
          onRow={(job) => ({ onClick: () => navigate({ view: "jobs", id: job.jobId }), className: "clickable" })}
          columns={[
            { title: "Task", key: "task", className: "phone-title", render: (_, job) => <Task job={job} now={now} /> },
            {
              title: "Status",
              key: "state",
              className: "phone-state",
              width: 120,
              render: (_, job) => (
                <>
                  <JobStateTag state={job.state} />
                  <small>{formatAttempts(job, now)}</small>
                </>
              ),
            },
            {
              title: "Priority",
              dataIndex: "priority",
              width: 82,
              responsive: ["lg"],
              render: (priority: JobShape["priority"]) => <PriorityLabel priority={priority} />,
            },
            {
              title: "Deadline",
              key: "deadline",
              width: 94,
              responsive: ["lg"],
              render: (_, job) => <Deadline job={job} now={now} />,
            },
            {
              title: "Result",
              key: "result",
              width: 204,
              responsive: ["xl"],
              render: (_, job) => <JobResult job={job} />,
            },
            {
              title: <span className="visually-hidden">Actions</span>,
              key: "actions",
              width: 96,
              responsive: ["sm"],
              align: "right",
              render: (_, job) => <JobActionButton job={job} size="small" />,
            },
          ]}
        />
      )}
      {hasMore && <ShowMore onClick={loadMore} />}
    </>
  );
}

function Task({ job, now }: { job: JobShape; now: number }) {
  return (
    <>
      <RouteLink to={{ view: "jobs", id: job.jobId }} className="truncate" onClick={(event) => event.stopPropagation()}>
        {toSafeLine(job.task)}
      </RouteLink>
      <small>
        <RequesterAndAgent job={job} /> · {formatTimeOrDate(job.createdAt, now)}
      </small>
    </>
  );
}

function Deadline({ job, now }: { job: JobShape; now: number }) {
  const soon = isOpenJob(job) && job.deadline && job.deadline - now < DEADLINE_SOON_MS;
  const text = formatDeadline(job, now);
  return text ? <span className={soon ? "warning" : undefined}>{text}</span> : <span className="faint">–</span>;
}

function JobResult({ job }: { job: JobShape }) {
  const error = jobError(job);
  const failed = job.state === "failed" || job.state === "dead";
  const text = error || job.result;
  if (!text) return <span className="faint">–</span>;
  return <span className={error && failed ? "two-lines error" : "two-lines muted"}>{toSafeLine(text)}</span>;
}

function NoJobs({ state }: { state: JobState | undefined }) {
  const icon = <CarryOutOutlined aria-hidden />;
  if (state)
    return (
      <EmptyState icon={icon} title="No matching jobs">
        No job has the status “{JOB_STATES[state].label}”. Clear the filter to see all jobs.
      </EmptyState>
    );
  return (
    <EmptyState icon={icon} title="No jobs yet">
      Agents create jobs when they delegate work. You can also put a task on a{" "}
      <RouteLink to={{ view: "schedules", id: "" }}>schedule</RouteLink>.
    </EmptyState>
  );
}

/** The newest jobs with live updates, and older ones on demand. */
function useJobs(state: JobState | undefined) {
  const states = state ? [state] : [];
  const { pages, ...query } = usePages("jobs.list", { limit: 50, states });
  const updates = useJobUpdates();
  const listed = pages.flatMap((page) => page.jobs);
  return { ...query, jobs: mergeJobs(listed, updates, states, query.hasMore) };
}
