// Start screen of a new chat: the selected agent and a few example prompts.

import { BulbOutlined, ClockCircleOutlined, CodeOutlined, MailOutlined, ToolOutlined } from "@ant-design/icons";
import { Logo } from "../components/icons";
import { useAppState, useClient } from "../state/hooks";
import type { AgentShape } from "../wire";

/** What a model without tools does well, however small it is. */
const SIMPLE_PROMPTS = [
  {
    key: "poem",
    icon: <BulbOutlined aria-hidden />,
    label: "Write a short poem about rain",
    description: "Be creative",
  },
  {
    key: "email",
    icon: <MailOutlined aria-hidden />,
    label: "Explain what an email is",
    description: "Learn something",
  },
];
const EXAMPLE_PROMPTS = [
  {
    key: "time",
    icon: <ClockCircleOutlined aria-hidden />,
    label: "What time is it?",
    description: "See a tool call",
  },
  {
    key: "abilities",
    icon: <ToolOutlined aria-hidden />,
    label: "What can you do?",
    description: "Ask the agent about itself",
  },
  {
    key: "reasoning",
    icon: <BulbOutlined aria-hidden />,
    label: "Think, then answer in one sentence",
    description: "See the model’s reasoning",
  },
  {
    key: "code",
    icon: <CodeOutlined aria-hidden />,
    label: "Show me a small Python function",
    description: "See highlighted code",
  },
];

/** The examples that an agent can do: only those with a tool need one. */
function examplePrompts({ tools }: AgentShape) {
  if (tools.length === 0) return SIMPLE_PROMPTS;
  return EXAMPLE_PROMPTS.filter(({ key }) => key !== "time" || tools.includes("current_time"));
}

export function Welcome({ agentId }: { agentId: string }) {
  const client = useClient();
  const { agents, sessions, sessionsLoaded } = useAppState();
  const agent = agents.find(({ id }) => id === agentId) ?? agents.find((each) => each.default) ?? agents[0];
  const firstVisit = sessionsLoaded && sessions.length === 0;
  return (
    <div className="welcome">
      <Logo size={44} />
      <h1>{firstVisit ? "Welcome to Atlas" : "What can I help with?"}</h1>
      <p className="lead">
        {firstVisit
          ? "Your agents run on this machine. Every tool call is checked and recorded, and risky ones need your approval."
          : agent?.description || "Every tool call is checked and recorded. Risky ones need your approval."}
      </p>
      <ul className="example-prompts">
        {(agent ? examplePrompts(agent) : []).map(({ key, icon, label, description }) => (
          <li key={key}>
            <button type="button" onClick={() => client.sendMessage(label, [], { agentId })}>
              {icon}
              <span>{label}</span>
              <small>{description}</small>
            </button>
          </li>
        ))}
      </ul>
      {agent && (
        <p className="muted">
          {agent.name || agent.id} · <code>{agent.model || "No model"}</code>
          {agent.tools.length > 0 && <> · {agent.tools.length === 1 ? "1 tool" : `${agent.tools.length} tools`}</>}
        </p>
      )}
    </div>
  );
}
