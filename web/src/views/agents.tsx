// Agents: each with its model and the number of its tools.

import { RobotOutlined } from "@ant-design/icons";
import { Alert, Button, Spin, Tag, Tooltip } from "antd";
import { lazy, Suspense } from "react";
import { RouteLink } from "../components/link";
import { Avatar } from "../components/speaker";
import { navigate } from "../layout/router";
import { toSentence } from "../state/format";
import { useAppState } from "../state/hooks";
import type { AgentShape } from "../wire";
import { EmptyState, View } from "./view";

const AgentEditor = lazy(() => import("./agent-editor"));
const NEW_AGENT = "new";

export default function Agents({ id }: { id: string }) {
  const { agents, principal } = useAppState();
  const admin = principal?.scopes.includes("admin") ?? false;
  if (admin && (id === NEW_AGENT || agents.some((agent) => agent.id === id)))
    return (
      <Suspense fallback={<Spin className="centered" />}>
        <AgentEditor key={id} id={id === NEW_AGENT ? "" : id} />
      </Suspense>
    );
  return <AgentList admin={admin} />;
}

function AgentList({ admin }: { admin: boolean }) {
  const { agents } = useAppState();
  return (
    <View
      title="Agents"
      description="Your agents, their models and tools."
      controls={
        admin && (
          <Button type="primary" onClick={() => navigate({ view: "agents", id: NEW_AGENT })}>
            New agent
          </Button>
        )
      }
    >
      {agents.length === 0 && (
        <EmptyState icon={<RobotOutlined aria-hidden />} title="No agents yet">
          {admin ? "Create your first agent." : "Ask an administrator to create one."}
        </EmptyState>
      )}
      <ul className="cards">
        {agents.map((agent) => (
          <AgentCard key={agent.id} agent={agent} admin={admin} />
        ))}
      </ul>
      {admin && (
        <p className="muted">
          What agents may do: <RouteLink to={{ view: "settings", id: "permissions" }}>Permissions</RouteLink>
        </p>
      )}
    </View>
  );
}

function AgentCard({ agent, admin }: { agent: AgentShape; admin: boolean }) {
  const name = agent.name || agent.id;
  const handoffs = agent.handsOffTo?.length ?? 0;
  return (
    <li className="card agent-card">
      <header>
        <Avatar id={agent.id} name={agent.name || agent.id} />
        <h2>{admin ? <RouteLink to={{ view: "agents", id: agent.id }}>{name}</RouteLink> : name}</h2>
        {agent.default && <Tag>Default</Tag>}
        {agent.role && <Tag>{agent.role}</Tag>}
      </header>
      <p className="model">
        {agent.model ? <code>{agent.model}</code> : "No model"}
        {agent.needsKey && (
          <Tooltip title={toSentence(agent.notice ?? "")}>
            <Tag color="warning">Needs a key</Tag>
          </Tooltip>
        )}
      </p>
      {agent.description && <p>{agent.description}</p>}
      {agent.notice && !agent.needsKey && <Alert type="info" showIcon title={toSentence(agent.notice)} />}
      <p className="muted">
        {countTools(agent.tools.length)}
        {handoffs > 0 && ` · hands off to ${handoffs}`}
      </p>
    </li>
  );
}

function countTools(count: number): string {
  return count === 0 ? "No tools" : count === 1 ? "1 tool" : `${count} tools`;
}
