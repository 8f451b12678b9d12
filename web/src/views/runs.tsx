// Turns, and one of them as a picture.

import { ArrowLeftOutlined, FieldTimeOutlined } from "@ant-design/icons";
import { Alert, Button, Table } from "antd";
import { useEffect } from "react";
import { timelineOf } from "../charts/spans";
import { TimelinePicture } from "../charts/timeline";
import { Inside } from "../shell/link";
import { go } from "../shell/route";
import { useAsked, useHouse, useNow } from "../state/use";
import { momentOf, spanOf } from "../state/words";
import type { RunShape } from "../wire";
import { Frame, Nothing, Shown } from "./frame";
import { RunTag } from "./runtag";

export default function Runs({ id }: { id: string }) {
  return id ? <OneRun key={id} id={id} /> : <AllRuns />;
}

function useSessionName(): (key: string) => string {
  const { sessions } = useHouse();
  return (key) => sessions.find((session) => session.sessionKey === key)?.label || "a session";
}

function AllRuns() {
  const asked = useAsked("runs.list", { limit: 100 });
  const nameOf = useSessionName();
  const { sessions } = useHouse();
  useEffect(() => asked.again(), [sessions, asked.again]); // a turn begins or ends with every change of a session
  return (
    <Frame
      title="Runs"
      about="Every turn that was taken, the latest first. Open one to see its rounds, calls and waits."
    >
      <Shown asked={asked}>
        {({ runs }) =>
          runs.length === 0 ? (
            <Nothing icon={<FieldTimeOutlined aria-hidden />} title="No turn yet">
              Say something to an agent: its turn appears here.
            </Nothing>
          ) : (
            <Table
              size="small"
              rowKey="runId"
              dataSource={runs}
              pagination={{ pageSize: 25, hideOnSinglePage: true, showSizeChanger: false }}
              scroll={{ x: 640 }}
              tableLayout="fixed"
              onRow={(run) => ({ onClick: () => go({ view: "runs", id: run.runId }), className: "pickable" })}
              columns={[
                {
                  title: "Begun",
                  dataIndex: "createdAt",
                  width: 160,
                  render: (at: number, run) => <Inside to={{ view: "runs", id: run.runId }}>{momentOf(at)}</Inside>,
                },
                { title: "Session", dataIndex: "sessionKey", ellipsis: true, render: nameOf },
                { title: "Agent", dataIndex: "agentId", width: 140 },
                {
                  title: "State",
                  dataIndex: "status",
                  width: 120,
                  render: (status: RunShape["status"]) => <RunTag status={status} />,
                },
                {
                  title: "Took",
                  key: "took",
                  width: 110,
                  className: "number",
                  render: (_, run) => (run.endedAt ? spanOf(run.endedAt - run.createdAt) : "…"),
                },
              ]}
            />
          )
        }
      </Shown>
    </Frame>
  );
}

function OneRun({ id }: { id: string }) {
  const asked = useAsked("runs.get", { runId: id });
  const nameOf = useSessionName();
  const now = useNow(1000);
  const run = asked.answer?.run;
  const open = run !== undefined && !run.endedAt;
  useEffect(() => {
    if (open) asked.again();
  }, [open, now, asked.again]);
  return (
    <Frame
      title="One turn"
      about={
        run
          ? `${momentOf(run.createdAt)}, ${run.agentId}${run.user ? `, asked by ${run.user}` : ""}`
          : "What happened, from the first word to the last."
      }
      extra={
        <Button icon={<ArrowLeftOutlined aria-hidden />} onClick={() => go({ view: "runs", id: "" })}>
          All runs
        </Button>
      }
    >
      <Shown asked={asked}>
        {(found) => {
          const timeline = timelineOf(found, now);
          return (
            <div className="stack">
              <dl className="facts">
                <div>
                  <dt>State</dt>
                  <dd>
                    <RunTag status={found.run.status} />
                  </dd>
                </div>
                <div>
                  <dt>Took</dt>
                  <dd>{spanOf(timeline.to - timeline.from)}</dd>
                </div>
                <div>
                  <dt>Rounds</dt>
                  <dd>{found.steps.filter((step) => step.kind === "reply").length}</dd>
                </div>
                <div>
                  <dt>Calls</dt>
                  <dd>{found.steps.filter((step) => step.kind === "intent").length}</dd>
                </div>
                <div>
                  <dt>Session</dt>
                  <dd>
                    <Inside to={{ view: "chat", id: found.run.sessionKey }}>{nameOf(found.run.sessionKey)}</Inside>
                  </dd>
                </div>
              </dl>
              {found.run.error && <Alert type="error" showIcon title={found.run.error} />}
              <TimelinePicture timeline={timeline} />
            </div>
          );
        }}
      </Shown>
    </Frame>
  );
}
