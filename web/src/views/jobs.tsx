// Jobs: what agents have handed to each other and what was due, live; beside it the schedules.

import { CarryOutOutlined } from "@ant-design/icons";
import { Alert, Button, Select, Table } from "antd";
import { useEffect, useState } from "react";
import { Inside } from "../shell/link";
import { go } from "../shell/route";
import { deadlineOf, isOpen, JOB_STATES, type JobState, merged, triesOf, troubleOf } from "../state/jobs";
import { useAsked, useAtlas, useJobNews, useNow } from "../state/use";
import { inOneLine, whenOf } from "../state/words";
import type { JobShape } from "../wire";
import { Frame, Nothing } from "./frame";
import { JobAct, OneJob, Priority, StateTag, Who } from "./job";
import { Schedules } from "./schedules";

const SCHEDULES = "schedules";
const SOON = 600_000;
const OPTIONS = (Object.keys(JOB_STATES) as JobState[]).map((value) => ({ value, label: JOB_STATES[value].words }));

export default function Jobs({ id }: { id: string }) {
  if (id && id !== SCHEDULES) return <OneJob key={id} id={id} />;
  const tab = (name: string, to: string) => (
    <Inside to={{ view: "jobs", id: to }} aria-current={id === to ? "page" : undefined}>
      {name}
    </Inside>
  );
  return (
    <Frame
      title="Jobs"
      about="Work that your agents have handed to each other, and tasks that come round by themselves. Jobs outlive a restart."
    >
      <nav className="tabs" aria-label="Jobs and schedules">
        {tab("Jobs", "")}
        {tab("Schedules", SCHEDULES)}
      </nav>
      {id ? <Schedules /> : <AllJobs />}
    </Frame>
  );
}

function AllJobs() {
  const [state, setState] = useState<JobState>();
  const { rows, more, older, busy, error } = useJobs(state);
  const now = useNow(5000);
  return (
    <>
      <div className="filters">
        <Select
          allowClear
          placeholder="Any state"
          aria-label="State"
          value={state}
          onChange={setState}
          options={OPTIONS}
        />
      </div>
      {error && <Alert type="warning" showIcon title={error} />}
      {!busy && !error && rows.length === 0 ? (
        <NoJob state={state} />
      ) : (
        <Table
          size="small"
          rowKey="jobId"
          className="jobs"
          loading={busy && rows.length === 0}
          dataSource={rows}
          pagination={false}
          tableLayout="fixed"
          onRow={(job) => ({ onClick: () => go({ view: "jobs", id: job.jobId }), className: "pickable" })}
          columns={[
            { title: "Task", key: "task", render: (_, job) => <Task job={job} now={now} /> },
            {
              title: "State",
              key: "state",
              width: 120,
              render: (_, job) => (
                <>
                  <StateTag state={job.state} />
                  <small>{triesOf(job, now)}</small>
                </>
              ),
            },
            {
              title: "Priority",
              dataIndex: "priority",
              width: 82,
              responsive: ["lg"],
              render: (priority: JobShape["priority"]) => <Priority priority={priority} />,
            },
            {
              title: "Deadline",
              key: "deadline",
              width: 94,
              responsive: ["lg"],
              render: (_, job) => (
                <span className={isOpen(job) && job.deadline && job.deadline - now < SOON ? "wait" : undefined}>
                  {deadlineOf(job, now) || <span className="faint">–</span>}
                </span>
              ),
            },
            {
              title: "What came of it",
              key: "result",
              width: 204,
              responsive: ["xl"],
              render: (_, job) => <Outcome job={job} />,
            },
            {
              title: <span className="unseen">What you can do</span>,
              key: "act",
              width: 96,
              responsive: ["sm"],
              align: "right",
              render: (_, job) => <JobAct job={job} size="small" />,
            },
          ]}
        />
      )}
      {more && (
        <Button block type="text" onClick={older}>
          Older
        </Button>
      )}
    </>
  );
}

function Task({ job, now }: { job: JobShape; now: number }) {
  return (
    <>
      <Inside to={{ view: "jobs", id: job.jobId }} className="cut" onClick={(event) => event.stopPropagation()}>
        {inOneLine(job.task)}
      </Inside>
      <small>
        <Who job={job} /> · {whenOf(job.createdAt, now)}
      </small>
    </>
  );
}

function Outcome({ job }: { job: JobShape }) {
  const trouble = troubleOf(job);
  if (trouble)
    return (
      <span className={job.state === "failed" || job.state === "dead" ? "two-lines bad" : "two-lines quiet"}>
        {inOneLine(trouble)}
      </span>
    );
  return job.result ? (
    <span className="two-lines quiet">{inOneLine(job.result)}</span>
  ) : (
    <span className="faint">–</span>
  );
}

function NoJob({ state }: { state: JobState | undefined }) {
  const icon = <CarryOutOutlined aria-hidden />;
  if (state)
    return (
      <Nothing icon={icon} title="No job is like that">
        None is in the state “{JOB_STATES[state].words}”. Take the filter away to see all.
      </Nothing>
    );
  return (
    <Nothing icon={icon} title="No job yet">
      When an agent calls <code>delegate_task</code>, another one gets the work as a job, and its answer comes back as a
      message. Ask for something that two of them do together, or put a task on a{" "}
      <Inside to={{ view: "jobs", id: SCHEDULES }}>schedule</Inside>.
    </Nothing>
  );
}

/** The latest jobs, each as it was last told of, with new ones before them as they come. */
function useJobs(state: JobState | undefined) {
  const atlas = useAtlas();
  const states = state ? [state] : [];
  const first = useAsked("jobs.list", { limit: 50, states });
  const news = useJobNews();
  const [pages, setPages] = useState<{ jobs: JobShape[]; cursor?: string }>();
  useEffect(() => setPages(undefined), [first.answer, state]);
  const cursor = pages ? pages.cursor : (first.answer?.nextCursor ?? undefined);
  const older = () => {
    if (cursor === undefined) return;
    atlas.ask("jobs.list", { limit: 50, cursor, states }).then(
      (page) =>
        setPages((before) => ({ jobs: [...(before?.jobs ?? []), ...page.jobs], cursor: page.nextCursor ?? undefined })),
      () => undefined,
    );
  };
  const rows = merged([...(first.answer?.jobs ?? []), ...(pages?.jobs ?? [])], news, states, cursor !== undefined);
  return { rows, more: cursor !== undefined, older, busy: first.busy, error: first.error };
}
