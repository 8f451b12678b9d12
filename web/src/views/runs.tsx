// Runs: a list of all runs, and the timeline of one.

import { ArrowLeftOutlined, FieldTimeOutlined } from "@ant-design/icons";
import { Alert, Button, Table } from "antd";
import { useEffect } from "react";
import { buildTimeline, TimelineChart } from "../charts/timeline";
import { RouteLink } from "../components/link";
import { navigate } from "../layout/router";
import { formatDateTime, formatDuration, toSentence } from "../state/format";
import { useAppState, useNow, useQuery } from "../state/hooks";
import type { RunDetails, RunShape } from "../wire";
import { ACTIVITY_TABS, EmptyState, QueryResult, RunStatusTag, View } from "./view";

export default function Runs({ id }: { id: string }) {
  return id ? <RunPage key={id} id={id} /> : <RunList />;
}

function useSessionName(): (key: string) => string {
  const { sessions } = useAppState();
  return (key) => sessions.find((session) => session.sessionKey === key)?.label || "Untitled";
}

function RunList() {
  const query = useQuery("runs.list", { limit: 100 });
  const sessionName = useSessionName();
  const { sessions } = useAppState();
  const { reload } = query;
  // biome-ignore lint/correctness/useExhaustiveDependencies: a session changes whenever one of its runs starts or ends
  useEffect(() => reload(), [sessions, reload]);
  return (
    <View
      title="Runs"
      description="Every run of an agent, newest first. Open one to see its model calls, tool calls and waits."
      tabs={ACTIVITY_TABS}
    >
      <QueryResult query={query} what="runs">
        {({ runs }) =>
          runs.length === 0 ? (
            <EmptyState icon={<FieldTimeOutlined aria-hidden />} title="No runs yet">
              A run starts when you send a message to an agent.
            </EmptyState>
          ) : (
            <Table
              size="small"
              className="phone-cards"
              rowKey="runId"
              dataSource={runs}
              pagination={{ pageSize: 25, hideOnSinglePage: true, showSizeChanger: false }}
              scroll={{ x: 640 }}
              tableLayout="fixed"
              onRow={(run) => ({ onClick: () => navigate({ view: "runs", id: run.runId }), className: "clickable" })}
              columns={[
                {
                  title: "Started",
                  dataIndex: "createdAt",
                  className: "phone-meta",
                  width: 160,
                  render: (at: number, run) => (
                    <RouteLink to={{ view: "runs", id: run.runId }}>{formatDateTime(at)}</RouteLink>
                  ),
                },
                {
                  title: "Chat",
                  dataIndex: "sessionKey",
                  className: "phone-title",
                  ellipsis: true,
                  render: sessionName,
                },
                { title: "Agent", dataIndex: "agentId", className: "phone-meta", width: 140 },
                {
                  title: "Status",
                  dataIndex: "status",
                  className: "phone-state",
                  width: 120,
                  render: (status: RunShape["status"]) => <RunStatusTag status={status} />,
                },
                {
                  title: "Duration",
                  key: "duration",
                  width: 110,
                  className: "number phone-meta",
                  render: (_, run) => (run.endedAt ? formatDuration(run.endedAt - run.createdAt) : "…"),
                },
              ]}
            />
          )
        }
      </QueryResult>
    </View>
  );
}

function RunPage({ id }: { id: string }) {
  const query = useQuery("runs.get", { runId: id });
  const now = useNow(1000);
  const { reload } = query;
  const run = query.data?.run;
  const open = run !== undefined && !run.endedAt;
  // biome-ignore lint/correctness/useExhaustiveDependencies: an open run is reloaded on every tick of the clock
  useEffect(() => {
    if (open) reload();
  }, [open, now, reload]);
  return (
    <View
      title="Run details"
      description={
        run
          ? `${run.agentId}, started ${formatDateTime(run.createdAt)}${run.user ? ` by ${run.user}` : ""}`
          : "Model calls, tool calls and waits of this run."
      }
      controls={
        <Button icon={<ArrowLeftOutlined aria-hidden />} onClick={() => navigate({ view: "runs", id: "" })}>
          All runs
        </Button>
      }
    >
      <QueryResult query={query} what="this run">
        {(found) => <RunContent found={found} now={now} />}
      </QueryResult>
    </View>
  );
}

function RunContent({ found, now }: { found: RunDetails; now: number }) {
  const { run, steps } = found;
  const sessionName = useSessionName();
  const timeline = buildTimeline(found, now);
  const countSteps = (kind: string) => steps.filter((step) => step.kind === kind).length;
  return (
    <div className="stack">
      <dl className="facts">
        <div>
          <dt>Status</dt>
          <dd>
            <RunStatusTag status={run.status} />
          </dd>
        </div>
        <div>
          <dt>Duration</dt>
          <dd>{formatDuration(timeline.to - timeline.from)}</dd>
        </div>
        <div>
          <dt>Model calls</dt>
          <dd>{countSteps("reply")}</dd>
        </div>
        <div>
          <dt>Tool calls</dt>
          <dd>{countSteps("intent")}</dd>
        </div>
        <div>
          <dt>Chat</dt>
          <dd>
            <RouteLink to={{ view: "chat", id: run.sessionKey }}>{sessionName(run.sessionKey)}</RouteLink>
          </dd>
        </div>
      </dl>
      {run.error && <Alert type="error" showIcon title={toSentence(run.error)} />}
      <TimelineChart timeline={timeline} />
    </div>
  );
}
