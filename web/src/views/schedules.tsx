// Schedules: recurring tasks, their next run, and the actions for each.

import { CalendarOutlined, CaretRightOutlined, DeleteOutlined, PlusOutlined } from "@ant-design/icons";
import { App, Button, Switch, Tag } from "antd";
import { useEffect, useState } from "react";
import { navigate } from "../layout/router";
import { formatDateTime, formatRelativeTime } from "../state/format";
import { useAppState, useClient, useNow, useQuery } from "../state/hooks";
import { PRIORITY_LABELS } from "../state/jobs";
import { describeCron } from "../state/schedules";
import { toSafeLine } from "../state/unicode-safety";
import type { ScheduleShape } from "../wire";
import { NewScheduleDrawer } from "./new-schedule";
import { EmptyState, JOB_TABS, QueryResult, View } from "./view";

export default function Schedules() {
  const query = useQuery("schedules.list", {});
  const { principal } = useAppState();
  const [creating, setCreating] = useState(false);
  const now = useNow(10_000);
  const { reload } = query;
  // biome-ignore lint/correctness/useExhaustiveDependencies: the time of the next run changes when it is reached
  useEffect(() => reload(), [now, reload]);
  const canWrite = principal?.scopes.includes("write") ?? false;
  const newButton = (
    <Button type="primary" icon={<PlusOutlined aria-hidden />} disabled={!canWrite} onClick={() => setCreating(true)}>
      New schedule
    </Button>
  );
  return (
    <View title="Schedules" description="Tasks that run by themselves at set times." tabs={JOB_TABS}>
      <QueryResult query={query} what="schedules">
        {({ schedules }) =>
          schedules.length === 0 ? (
            <EmptyState icon={<CalendarOutlined aria-hidden />} title="No schedules yet">
              <p>A schedule creates a job for an agent at set times. Create one here or from a terminal:</p>
              <pre className="example" tabIndex={0}>
                atlas schedule add news "0 9 * * 1-5" "What is new in our field?"
              </pre>
              {newButton}
            </EmptyState>
          ) : (
            <>
              <div>{newButton}</div>
              <ul className="cards">
                {schedules.map((schedule) => (
                  <ScheduleCard
                    key={schedule.name}
                    schedule={schedule}
                    now={now}
                    canWrite={canWrite}
                    onChange={reload}
                  />
                ))}
              </ul>
            </>
          )
        }
      </QueryResult>
      <NewScheduleDrawer
        open={creating}
        onClose={() => setCreating(false)}
        onCreated={() => {
          setCreating(false);
          reload();
        }}
      />
    </View>
  );
}

interface CardProps {
  schedule: ScheduleShape;
  now: number;
  canWrite: boolean;
  onChange: () => void;
}

function ScheduleCard({ schedule, now, canWrite, onChange }: CardProps) {
  const client = useClient();
  const { status } = useAppState();
  const { message: toast, modal } = App.useApp();
  const [busy, setBusy] = useState(false);
  const { name, cron, zone, paused, task, agentId, priority } = schedule;
  const disabled = !canWrite || busy || status !== "online";
  const perform = (work: Promise<unknown>) => {
    setBusy(true);
    return work.then(onChange, (error: Error) => void toast.warning(error.message)).finally(() => setBusy(false));
  };
  const confirmDelete = () =>
    modal.confirm({
      title: `Delete ${name}?`,
      content: "It won’t run again. Existing jobs are kept.",
      okText: "Delete",
      okButtonProps: { danger: true },
      cancelText: "Cancel",
      onOk: () => perform(client.request("schedules.remove", { name })),
    });
  const runNow = async () => {
    const { job } = await client.request("schedules.run", { name });
    navigate({ view: "jobs", id: job.jobId });
  };
  return (
    <li className="card">
      <header>
        <h2>{name}</h2>
        {(priority === "high" || priority === "urgent") && <Tag color="warning">{PRIORITY_LABELS[priority]}</Tag>}
        <Switch
          size="small"
          checked={!paused}
          disabled={disabled}
          aria-label={`Enable ${name}`}
          onChange={(enabled) => void perform(client.request("schedules.pause", { name, paused: !enabled }))}
        />
      </header>
      <p className="times">
        <strong>{describeCron(cron)}</strong> <code>{cron}</code> {zone}
      </p>
      <p className="three-lines" title={task}>
        {toSafeLine(task, 400)}
      </p>
      <p className="muted">
        {agentId} · <NextRun schedule={schedule} now={now} />
      </p>
      <footer>
        <Button
          size="small"
          icon={<CaretRightOutlined aria-hidden />}
          disabled={disabled}
          aria-label={`Run now: ${name}`}
          onClick={() => void perform(runNow())}
        >
          Run now
        </Button>
        <Button
          size="small"
          type="text"
          danger
          icon={<DeleteOutlined aria-hidden />}
          disabled={disabled}
          aria-label={`Delete ${name}`}
          onClick={confirmDelete}
        >
          Delete
        </Button>
      </footer>
    </li>
  );
}

function NextRun({ schedule: { paused, nextAt }, now }: { schedule: ScheduleShape; now: number }) {
  if (paused) return "Paused";
  if (!nextAt) return "No upcoming run";
  const time = formatDateTime(nextAt);
  return (
    <>
      Next run{" "}
      <time dateTime={new Date(nextAt).toISOString()} title={time}>
        {formatRelativeTime(nextAt, now)}
      </time>
      , {time.replace(/:\d\d$/, "")}
    </>
  );
}
