// Schedules: tasks that come round by themselves, when they do next, and what can be done with each.

import { CalendarOutlined, CaretRightOutlined, DeleteOutlined, PlusOutlined } from "@ant-design/icons";
import { App, Button, Switch, Tag } from "antd";
import { useEffect, useState } from "react";
import { go } from "../shell/route";
import { cronWords } from "../state/schedules";
import { useAsked, useAtlas, useHouse, useNow } from "../state/use";
import { fromNow, inOneLine, momentOf } from "../state/words";
import type { ScheduleShape } from "../wire";
import { Nothing, Shown } from "./frame";
import { NewSchedule } from "./schedule";

export function Schedules() {
  const asked = useAsked("schedules.list", {});
  const { principal } = useHouse();
  const [adding, setAdding] = useState(false);
  const now = useNow(10_000);
  useEffect(() => asked.again(), [now, asked.again]); // a time that has come is followed by the next
  const may = principal?.scopes.includes("write") ?? false;
  const add = (
    <Button type="primary" icon={<PlusOutlined aria-hidden />} disabled={!may} onClick={() => setAdding(true)}>
      New schedule
    </Button>
  );
  return (
    <>
      <Shown asked={asked}>
        {({ schedules }) =>
          schedules.length === 0 ? (
            <Nothing icon={<CalendarOutlined aria-hidden />} title="No schedule yet">
              <p>
                A schedule gives an agent the same task again and again: each time it comes round, there is a job. Begin
                one here, or in a terminal:
              </p>
              <pre className="example" tabIndex={0}>
                atlas schedule add news "0 9 * * 1-5" "What is new in our field?"
              </pre>
              {add}
            </Nothing>
          ) : (
            <>
              <div>{add}</div>
              <ul className="cards">
                {schedules.map((each) => (
                  <Card key={each.name} schedule={each} now={now} may={may} onChange={asked.again} />
                ))}
              </ul>
            </>
          )
        }
      </Shown>
      <NewSchedule
        open={adding}
        onClose={() => setAdding(false)}
        onAdded={() => {
          setAdding(false);
          asked.again();
        }}
      />
    </>
  );
}

function Card({
  schedule,
  now,
  may,
  onChange,
}: {
  schedule: ScheduleShape;
  now: number;
  may: boolean;
  onChange: () => void;
}) {
  const atlas = useAtlas();
  const { link } = useHouse();
  const { message, modal } = App.useApp();
  const [busy, setBusy] = useState(false);
  const { name, cron, zone, paused, task, agentId, priority, nextAt } = schedule;
  const off = !may || busy || link !== "online";
  const told = (work: Promise<unknown>) => {
    setBusy(true);
    return work.then(onChange, (error: Error) => void message.warning(error.message)).finally(() => setBusy(false));
  };
  const remove = () =>
    modal.confirm({
      title: `Remove ${name}?`,
      content: "Its task does not come round any more. The jobs it has made stay.",
      okText: "Remove",
      okButtonProps: { danger: true },
      cancelText: "Keep",
      onOk: () => told(atlas.ask("schedules.remove", { name })),
    });
  const words = cronWords(cron);
  return (
    <li className="card">
      <header>
        <h2>{name}</h2>
        {(priority === "high" || priority === "urgent") && <Tag color="warning">{priority}</Tag>}
        <Switch
          size="small"
          checked={!paused}
          disabled={off}
          aria-label={`${name} is on`}
          onChange={(on) => void told(atlas.ask("schedules.pause", { name, paused: !on }))}
        />
      </header>
      <p className="times">
        <strong>{words}</strong> <code>{cron}</code> {zone}
      </p>
      <p className="three-lines" title={task}>
        {inOneLine(task, 400)}
      </p>
      <p className="quiet next">
        {agentId} ·{" "}
        {paused ? (
          "rests"
        ) : nextAt ? (
          <>
            next{" "}
            <time dateTime={new Date(nextAt).toISOString()} title={momentOf(nextAt)}>
              {fromNow(nextAt, now)}
            </time>
            , {momentOf(nextAt).replace(/:\d\d$/, "")}
          </>
        ) : (
          "does not come again"
        )}
      </p>
      <footer>
        <Button
          size="small"
          icon={<CaretRightOutlined aria-hidden />}
          disabled={off}
          aria-label={`Run now: ${name}`}
          onClick={() =>
            void told(atlas.ask("schedules.run", { name }).then(({ job }) => go({ view: "jobs", id: job.jobId })))
          }
        >
          Run now
        </Button>
        <Button
          size="small"
          type="text"
          danger
          icon={<DeleteOutlined aria-hidden />}
          disabled={off}
          aria-label={`Remove ${name}`}
          onClick={remove}
        >
          Remove
        </Button>
      </footer>
    </li>
  );
}
