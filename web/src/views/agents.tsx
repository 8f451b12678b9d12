// Who the agents are, what each may do, and what every tool takes.

import { CheckOutlined, CloseOutlined, QuestionOutlined, RobotOutlined } from "@ant-design/icons";
import { Alert, Drawer, Table, Tag, Tooltip } from "antd";
import { useMemo, useState } from "react";
import { CodeBlock } from "../markdown/code";
import { useAsked, useHouse } from "../state/use";
import type { Matrix, MatrixRow, ToolShape } from "../wire";
import { Frame, Nothing, Shown } from "./frame";

export default function Agents({ id }: { id: string }) {
  const { agents } = useHouse();
  const matrix = useAsked("tools.matrix", {});
  const tools = useAsked("tools.list", {});
  const [open, setOpen] = useState<string>(id);
  const asks = useMemo(
    () =>
      new Set(
        (tools.answer?.tools ?? [])
          .filter((tool) => tool.requiresApproval)
          .map((tool) => `${tool.agentId} ${tool.name}`),
      ),
    [tools.answer],
  );
  const known = useMemo(() => new Map((tools.answer?.tools ?? []).map((tool) => [tool.name, tool])), [tools.answer]);
  return (
    <Frame
      title="Agents and tools"
      about="Who works here, with which model, and what each may do. The files in your workspace say so; edit them and this view follows."
    >
      {agents.length === 0 && (
        <Nothing icon={<RobotOutlined aria-hidden />} title="No agent yet">
          An agent is a file in the workspace that says who it is.
        </Nothing>
      )}
      <ul className="cards">
        {agents.map((agent) => (
          <li key={agent.id} className="card">
            <header>
              <h2>{agent.name || agent.id}</h2>
              {agent.default && <Tag>default</Tag>}
              {agent.role && <Tag>{agent.role}</Tag>}
            </header>
            <p className="model">
              <code>{agent.model || "no model"}</code>
            </p>
            {agent.description && <p>{agent.description}</p>}
            {agent.notice && <Alert type="info" showIcon title={agent.notice} />}
            <p className="quiet">
              {agent.tools.length === 0
                ? "No tools"
                : agent.tools.length === 1
                  ? "One tool"
                  : `${agent.tools.length} tools`}
            </p>
          </li>
        ))}
      </ul>
      <h2 className="section">Who may do what</h2>
      <Shown asked={matrix}>
        {(answer) =>
          answer.tools.length ? (
            <Grid matrix={answer} asks={asks} onTool={setOpen} />
          ) : (
            <p className="quiet">No agent has a tool yet.</p>
          )
        }
      </Shown>
      <ToolDrawer tool={known.get(open)} onClose={() => setOpen("")} />
    </Frame>
  );
}

const CELLS = {
  yes: { icon: <CheckOutlined className="good" aria-hidden />, words: "may, without asking" },
  ask: { icon: <QuestionOutlined className="wait" aria-hidden />, words: "asks a person first" },
  no: { icon: <CloseOutlined className="faint" aria-hidden />, words: "may not" },
};

function Grid({ matrix, asks, onTool }: { matrix: Matrix; asks: Set<string>; onTool: (name: string) => void }) {
  const rows = matrix.tools.map((tool) => ({
    tool,
    cells: Object.fromEntries(matrix.rows.map((row) => [row.agentId, row.cells[tool]])),
  }));
  return (
    <Table
      size="small"
      rowKey="tool"
      dataSource={rows}
      pagination={false}
      scroll={{ x: "max-content" }}
      onRow={({ tool }) => ({ onClick: () => onTool(tool), className: "pickable" })}
      columns={[
        {
          title: "Tool",
          dataIndex: "tool",
          fixed: "left",
          render: (tool: string) => (
            <button type="button" className="plain" onClick={() => onTool(tool)}>
              <code>{tool}</code>
            </button>
          ),
        },
        ...matrix.rows.map((row: MatrixRow) => ({
          title: row.agentId,
          key: row.agentId,
          align: "center" as const,
          render: (_: unknown, { tool, cells }: (typeof rows)[number]) => (
            <Cell
              verdict={cells[row.agentId] === "yes" && asks.has(`${row.agentId} ${tool}`) ? "ask" : cells[row.agentId]}
            />
          ),
        })),
      ]}
    />
  );
}

function Cell({ verdict }: { verdict: MatrixRow["cells"][string] | undefined }) {
  if (!verdict)
    return (
      <span className="faint" aria-label="does not have it">
        –
      </span>
    );
  return (
    <Tooltip title={CELLS[verdict].words}>
      <span role="img" aria-label={CELLS[verdict].words}>
        {CELLS[verdict].icon}
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
            {tool.requiresApproval && <Tag color="warning">asks first</Tag>}
          </p>
          <CodeBlock code={JSON.stringify(tool.inputSchema, null, 2)} language="json" growing={false} />
        </div>
      )}
    </Drawer>
  );
}
