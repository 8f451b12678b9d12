// One answer: its words, thoughts and calls in order, and below what one can do with it.

import { BranchesOutlined, ClockCircleOutlined, RedoOutlined } from "@ant-design/icons";
import { Alert, Button, Dropdown, Tooltip } from "antd";
import { memo } from "react";
import { CopyButton } from "../markdown/code";
import { Markdown } from "../markdown/markdown";
import { Inside } from "../shell/link";
import { isOpen, type Run } from "../state/talk";
import { isSame, piecesOf, spentOn, wordsOf, type Answered } from "../state/turns";
import { useHouse } from "../state/use";
import { costOf, countOf } from "../state/words";
import { Thinking } from "./thinking";
import { ToolCard } from "./tool";

export interface AnswerActs {
  retry: (item: Answered, agentId?: string) => void;
  fork: (messageId: string) => void;
}

export const Answer = memo(
  function Answer({ item, acts }: { item: Answered; acts: AnswerActs }) {
    const { run } = item;
    const pieces = piecesOf(item);
    const last = pieces.at(-1);
    const waiting = run?.end === "running" && (!last || (last.kind === "call" && last.call.state !== "running" && last.call.state !== "asking"));
    return (
      <article className="answer" aria-label="Answer" aria-busy={run ? isOpen(run) : false} data-run={item.runId}>
        {run?.notice && <Alert type="info" showIcon title={run.notice} className="notice" />}
        {pieces.map((piece) => {
          if (piece.kind === "call") return <ToolCard key={piece.id} call={piece.call} />;
          if (piece.kind === "thinking") return <Thinking key={piece.id} text={piece.text} growing={piece.growing} />;
          return <Markdown key={piece.id} text={piece.text} growing={piece.growing} />;
        })}
        {waiting && <Dots />}
        <Ending run={run} />
        {(!run || !isOpen(run)) && <Foot item={item} acts={acts} />}
      </article>
    );
  },
  (before, after) => isSame(before.item, after.item) && before.acts === after.acts,
);

function Dots() {
  return (
    <span className="dots" role="status" aria-label="The agent works">
      <i /> <i /> <i />
    </span>
  );
}

function Ending({ run }: { run?: Run }) {
  if (run?.end === "cancelled") return <p className="ended">Stopped. What was said so far is not kept.</p>;
  if (run?.end !== "failed") return null;
  return <Alert type="error" showIcon title="This turn failed" description={run.error ?? "No reason was given."} className="failed" />;
}

function Foot({ item, acts }: { item: Answered; acts: AnswerActs }) {
  const { agents } = useHouse();
  const spent = spentOn(item);
  const words = wordsOf(item.messages);
  const last = item.messages.at(-1);
  const others = agents.map((agent) => ({ key: agent.id, label: `${agent.name || agent.id} · ${agent.model}` }));
  return (
    <footer className="foot">
      <span className="acts">
        {words && <CopyButton text={words} what="Copy answer" />}
        <Dropdown trigger={["click"]} menu={{ items: others, onClick: ({ key }) => acts.retry(item, key) }}>
          <Tooltip title="Try again, with any agent">
            <Button type="text" size="small" icon={<RedoOutlined aria-hidden />} aria-label="Try again" />
          </Tooltip>
        </Dropdown>
        {last && (
          <Tooltip title="Go on from here in a new session">
            <Button type="text" size="small" icon={<BranchesOutlined aria-hidden />} aria-label="Fork from here" onClick={() => acts.fork(last.id)} />
          </Tooltip>
        )}
        {item.runId && (
          <Tooltip title="What happened, as a picture">
            <Inside className="icon-link" to={{ view: "runs", id: item.runId }} aria-label="Timeline of this turn">
              <ClockCircleOutlined />
            </Inside>
          </Tooltip>
        )}
      </span>
      {spent && (
        <Tooltip title={`${spent.input} tokens in${spent.cached ? `, ${spent.cached} of them cached` : ""}, ${spent.output} out${spent.estimated ? ", estimated" : ""}`}>
          <span className="spent">
            {spent.model} · {spent.estimated ? "≈ " : ""}
            {countOf(spent.input + spent.output)} tokens{spent.cost !== undefined ? ` · ${costOf(spent.cost)}` : ""}
          </span>
        </Tooltip>
      )}
    </footer>
  );
}
