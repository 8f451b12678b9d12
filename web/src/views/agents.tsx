// Agents and tools: each agent's model and tools, and which agent may use which tool.

import { CheckOutlined, CloseOutlined, QuestionOutlined, RobotOutlined } from "@ant-design/icons";
import { Alert, Button, Drawer, Spin, Table, Tag, Tooltip } from "antd";
import { lazy, Suspense, useMemo, useState } from "react";
import { RouteLink } from "../components/link";
import { Avatar } from "../components/speaker";
import { navigate } from "../layout/router";
import { CodeBlock } from "../markdown/code";
import { toSentence } from "../state/format";
import { useAppState, useQuery } from "../state/hooks";
import type { AgentShape, Matrix, MatrixRow, ToolShape } from "../wire";
import { EmptyState, QueryResult, View } from "./view";

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
  return <AgentList id={id} admin={admin} />;
}

function AgentList({ id, admin }: { id: string; admin: boolean }) {
  const { agents } = useAppState();
  const matrix = useQuery("tools.matrix", {});
  const { data } = useQuery("tools.list", {});
  const [openTool, setOpenTool] = useState(id);
  const tools = useMemo(() => data?.tools ?? [], [data]);
  const needsApproval = useMemo(
    () => new Set(tools.filter((tool) => tool.requiresApproval).map((tool) => `${tool.agentId} ${tool.name}`)),
    [tools],
  );
  const toolsByName = useMemo(() => new Map(tools.map((tool) => [tool.name, tool])), [tools]);
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
      <h2 className="section-title">Permissions</h2>
      <QueryResult query={matrix} what="permissions">
        {(result) =>
          result.tools.length ? (
            <PermissionTable matrix={result} needsApproval={needsApproval} onSelect={setOpenTool} />
          ) : (
            <p className="muted">No agent has any tools yet.</p>
          )
        }
      </QueryResult>
      <ToolDrawer tool={toolsByName.get(openTool)} onClose={() => setOpenTool("")} />
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

const VERDICTS = {
  yes: { icon: <CheckOutlined className="success" aria-hidden />, label: "Allowed" },
  ask: { icon: <QuestionOutlined className="warning" aria-hidden />, label: "Requires approval" },
  no: { icon: <CloseOutlined className="faint" aria-hidden />, label: "Not allowed" },
};

interface PermissionTableProps {
  matrix: Matrix;
  needsApproval: Set<string>;
  onSelect: (tool: string) => void;
}

function PermissionTable({ matrix, needsApproval, onSelect }: PermissionTableProps) {
  const rows = matrix.tools.map((tool) => ({
    tool,
    verdicts: Object.fromEntries(matrix.rows.map((row) => [row.agentId, row.cells[tool]])),
  }));
  const verdictOf = (agentId: string, { tool, verdicts }: (typeof rows)[number]) =>
    verdicts[agentId] === "yes" && needsApproval.has(`${agentId} ${tool}`) ? "ask" : verdicts[agentId];
  return (
    <Table
      size="small"
      rowKey="tool"
      dataSource={rows}
      pagination={false}
      scroll={{ x: "max-content" }}
      onRow={({ tool }) => ({ onClick: () => onSelect(tool), className: "clickable" })}
      columns={[
        {
          title: "Tool",
          dataIndex: "tool",
          fixed: "left",
          render: (tool: string) => (
            <button type="button" className="plain" onClick={() => onSelect(tool)}>
              <code>{tool}</code>
            </button>
          ),
        },
        ...matrix.rows.map(({ agentId }) => ({
          title: agentId,
          key: agentId,
          align: "center" as const,
          render: (_: unknown, row: (typeof rows)[number]) => <Verdict verdict={verdictOf(agentId, row)} />,
        })),
      ]}
    />
  );
}

function Verdict({ verdict }: { verdict: MatrixRow["cells"][string] | undefined }) {
  if (!verdict)
    return (
      <span className="faint" role="img" aria-label="Not available">
        –
      </span>
    );
  const { icon, label } = VERDICTS[verdict];
  return (
    <Tooltip title={label}>
      <span role="img" aria-label={label}>
        {icon}
      </span>
    </Tooltip>
  );
}

function ToolDrawer({ tool, onClose }: { tool: ToolShape | undefined; onClose: () => void }) {
  return (
    <Drawer open={tool !== undefined} onClose={onClose} size={520} title={tool && <code>{tool.name}</code>}>
      {tool && (
        <div className="stack">
          <p>{tool.description}</p>
          <p>
            <Tag>{tool.source}</Tag>
            {tool.requiresApproval && <Tag color="warning">Requires approval</Tag>}
          </p>
          <CodeBlock code={JSON.stringify(tool.inputSchema, null, 2)} language="json" streaming={false} />
        </div>
      )}
    </Drawer>
  );
}
