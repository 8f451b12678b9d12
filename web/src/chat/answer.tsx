// One answer: its words, thoughts and calls in order, and below what one can do with it.

import { Alert } from "antd";
import { memo, useEffect, useState } from "react";
import { Icon } from "../look/icon";
import { CopyButton } from "../markdown/code";
import { Markdown } from "../markdown/markdown";
import { Inside } from "../shell/link";
import { Menu } from "../shell/menu";
import { isOpen, type Run } from "../state/talk";
import { type Answered, isSame, piecesOf, spentOn, wordsOf } from "../state/turns";
import { useHouse } from "../state/use";
import { costOf, countOf } from "../state/words";
import { Act } from "./act";
import { Picture } from "./picture";
import { Plan } from "./plan";
import { Thinking } from "./thinking";
import { ToolCard } from "./tool";

export interface AnswerActs {
  retry: (item: Answered, by: { agentId?: string; model?: string }) => void;
  fork: (messageId: string) => void;
}

export const Answer = memo(
  function Answer({ item, acts }: { item: Answered; acts: AnswerActs }) {
    const { run } = item;
    const pieces = piecesOf(item);
    const last = pieces.at(-1);
    const waiting =
      run?.end === "running" &&
      (!last || (last.kind === "call" && last.call.state !== "running" && last.call.state !== "asking"));
    return (
      <article className="answer" aria-label="Answer" aria-busy={run ? isOpen(run) : false} data-run={item.runId}>
        {run?.notice && <Alert type="info" showIcon title={run.notice} className="notice" />}
        {item.plan && <Plan steps={item.plan} open={run ? isOpen(run) : false} />}
        {pieces.map((piece) => {
          if (piece.kind === "call") return <ToolCard key={piece.id} call={piece.call} />;
          if (piece.kind === "picture") return <Picture key={piece.id} picture={piece.picture} what="Picture" />;
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
  if (run?.end === "cancelled")
    return <p className="ended">Stopped.{run.text && " The agent does not read these words again."}</p>;
  if (run?.end !== "failed") return null;
  return (
    <Alert
      type="error"
      showIcon
      title="This turn failed"
      description={run.error ?? "No reason was given."}
      className="failed"
    />
  );
}

function Foot({ item, acts }: { item: Answered; acts: AnswerActs }) {
  const spent = spentOn(item);
  const words = wordsOf(item.messages);
  const last = item.messages.at(-1);
  return (
    <footer className="foot">
      <span className="acts">
        {words && <CopyButton text={words} what="Copy answer" />}
        <Again item={item} acts={acts} />
        {last && (
          <Act
            icon="fork"
            what="Fork from here"
            hint="Go on from here in a new session"
            onClick={() => acts.fork(last.id)}
          />
        )}
        {item.runId && (
          <Inside
            className="act"
            to={{ view: "runs", id: item.runId }}
            aria-label="Timeline of this turn"
            title="What happened, as a picture"
          >
            <Icon name="clock" />
          </Inside>
        )}
      </span>
      {spent && (
        <span
          className="spent"
          title={`${spent.input} tokens in${spent.cached ? `, ${spent.cached} of them cached` : ""}, ${spent.output} out${spent.estimated ? ", estimated" : ""}`}
        >
          {spent.model} · {spent.estimated ? "≈ " : ""}
          {countOf(spent.input + spent.output)} tokens{spent.cost !== undefined ? ` · ${costOf(spent.cost)}` : ""}
        </span>
      )}
    </footer>
  );
}

/** Try again, with any agent or model. The menu is made when it is asked for: it is below every answer. */
function Again({ item, acts }: { item: Answered; acts: AnswerActs }) {
  const [wanted, setWanted] = useState(false);
  return wanted ? <Others item={item} acts={acts} /> : <Act {...AGAIN} onClick={() => setWanted(true)} />;
}

const AGAIN = { icon: "again", what: "Try again", hint: "Try again, with any agent or model" } as const;

function Others({ item, acts }: { item: Answered; acts: AnswerActs }) {
  const [open, setOpen] = useState(false);
  const { agents, models } = useHouse();
  useEffect(() => setOpen(true), []); // once the button is there to open beside
  const named = models.filter((model) => model.available && model.id.includes("/"));
  const others = [
    ...agents.map((agent) => ({ key: `agent ${agent.id}`, label: `${agent.name || agent.id} · ${agent.model}` })),
    ...named.map((model) => ({ key: `model ${model.id}`, label: `the same agent · ${model.id}` })),
  ];
  const again = (key: string) => {
    const [kind, ...rest] = key.split(" ");
    acts.retry(item, kind === "model" ? { model: rest.join(" ") } : { agentId: rest.join(" ") });
  };
  return (
    <Menu items={others} onChoose={again} open={open} onOpen={setOpen}>
      <Act {...AGAIN} />
    </Menu>
  );
}
