// The first thing one sees in a new chat: who is there, and what could be said.

import { BulbOutlined, ClockCircleOutlined, CodeOutlined, InfoCircleOutlined, ToolOutlined } from "@ant-design/icons";
import { Prompts } from "@ant-design/x";
import { Alert } from "antd";
import { Mark } from "../shell/mark";
import { useAtlas, useHouse } from "../state/use";

const IDEAS = [
  {
    key: "time",
    icon: <ClockCircleOutlined aria-hidden />,
    label: "What time is it?",
    description: "See a tool at work",
  },
  {
    key: "can",
    icon: <ToolOutlined aria-hidden />,
    label: "What can you do?",
    description: "The agent tells about itself",
  },
  {
    key: "think",
    icon: <BulbOutlined aria-hidden />,
    label: "Think, then answer in one sentence",
    description: "Thoughts come folded away",
  },
  {
    key: "code",
    icon: <CodeOutlined aria-hidden />,
    label: "Show me a small Python function",
    description: "Code, ready to be copied",
  },
];

export function WelcomeView({ agentId }: { agentId: string }) {
  const atlas = useAtlas();
  const { agents, sessions, sessionsLoaded } = useHouse();
  const agent = agents.find((each) => each.id === agentId) ?? agents.find((each) => each.default) ?? agents[0];
  const first = sessionsLoaded && sessions.length === 0;
  return (
    <div className="welcome">
      <Mark size={44} />
      <h1>{first ? "Welcome to Atlas" : "What shall we do?"}</h1>
      <p className="lead">
        {first
          ? "Your agents run on this machine. Whatever they do is checked, counted and written down, and what is risky asks you first."
          : agent?.description || "Every tool call is checked, counted and written down; what is risky asks first."}
      </p>
      {agent?.notice && (
        <Alert type="info" showIcon icon={<InfoCircleOutlined aria-hidden />} title={sentence(agent.notice)} />
      )}
      <Prompts
        wrap
        items={IDEAS}
        onItemClick={({ data }) => atlas.say(String(data.label), [], { agentId })}
        className="ideas"
      />
      {agent && (
        <p className="quiet">
          {agent.name || agent.id} speaks with <code>{agent.model || "no model"}</code>
          {agent.tools.length > 0 && (
            <> and has {agent.tools.length === 1 ? "one tool" : `${agent.tools.length} tools`}</>
          )}
        </p>
      )}
    </div>
  );
}

function sentence(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
