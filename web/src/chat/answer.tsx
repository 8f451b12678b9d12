// One answer: its text, reasoning and tool calls in order, and the actions below it.

import { BulbOutlined, RightOutlined } from "@ant-design/icons";
import { Alert } from "antd";
import { memo, useEffect, useState } from "react";
import { ActionButton, CopyButton } from "../components/buttons";
import { Icon } from "../components/icons";
import { RouteLink } from "../components/link";
import { DropdownMenu } from "../components/menu";
import { Markdown } from "../markdown/markdown";
import { useModelLoading } from "../setup/model-loading";
import type { SendOptions } from "../state/client";
import {
  type AnswerItem,
  type AnswerUsage,
  answerPieces,
  answerUsage,
  firstSpeaker,
  isSameItem,
  messageText,
  roundLimit,
} from "../state/conversation";
import { formatCost, formatCount, toSentence } from "../state/format";
import { useAppState } from "../state/hooks";
import { isOpenRun, type RunState } from "../state/session";
import { ImageThumbnail } from "./image";
import { Plan } from "./plan";
import { Handoff, SpeakerHeading } from "./speaker";
import { ToolCallCard } from "./tool-call";

export interface AnswerActions {
  retry: (item: AnswerItem, options: SendOptions) => void;
  fork: (messageId: string) => void;
}

interface Props {
  item: AnswerItem;
  actions: AnswerActions;
}

export const Answer = memo(
  function Answer({ item, actions }: Props) {
    const { run } = item;
    const open = run !== undefined && isOpenRun(run);
    const pieces = answerPieces(item);
    const last = pieces.at(-1);
    const callEnded = last?.kind === "call" && last.call.status !== "running" && last.call.status !== "needs-approval";
    const { refusal, metadata } = item.messages.at(-1) ?? {};
    const truncated = metadata?.truncated === true;
    const cutOff = metadata?.budget ?? "cut off because it reached the token limit";
    const limit = roundLimit(item);
    const waitingForModel = run?.status === "running" && (!last || callEnded);
    return (
      <article className="answer" aria-label="Answer" aria-busy={open} data-run={item.runId}>
        <SpeakerHeading
          agentId={firstSpeaker(item)}
          model={answerUsage(item)?.model || run?.model}
          at={item.messages[0]?.createdAt}
        />
        {item.plan && <Plan steps={item.plan} running={open} />}
        {pieces.map((piece) => {
          if (piece.kind === "call") return <ToolCallCard key={piece.id} call={piece.call} />;
          if (piece.kind === "handoff")
            return <Handoff key={piece.id} from={piece.from} to={piece.to} note={piece.note} />;
          if (piece.kind === "image") return <ImageThumbnail key={piece.id} image={piece.image} label="Image" />;
          if (piece.kind === "reasoning")
            return <Reasoning key={piece.id} text={piece.text} streaming={piece.streaming} />;
          return <Markdown key={piece.id} text={piece.text} streaming={piece.streaming} />;
        })}
        {waitingForModel && <WorkingIndicator model={run.model} />}
        {refusal && <Alert type="warning" showIcon title={refusal} />}
        {truncated && <Alert type="warning" showIcon title={`The answer was ${cutOff}.`} />}
        {limit !== undefined && (
          <p className="stopped">
            Stopped after {limit} {limit === 1 ? "round" : "rounds"}. Send a message to continue.
          </p>
        )}
        <Outcome run={run} />
        {!open && <AnswerFooter item={item} actions={actions} />}
      </article>
    );
  },
  (previous, next) => isSameItem(previous.item, next.item) && previous.actions === next.actions,
);

const Reasoning = memo(function Reasoning({ text, streaming }: { text: string; streaming: boolean }) {
  const [expanded, setExpanded] = useState(false);
  return (
    <div className="reasoning">
      <button type="button" aria-expanded={expanded} onClick={() => setExpanded(!expanded)}>
        <BulbOutlined aria-hidden /> {streaming ? <span className="pulse">Thinking…</span> : "Reasoning"}
        <RightOutlined className="chevron" rotate={expanded ? 90 : 0} aria-hidden />
      </button>
      {expanded && <div className="reasoning-text">{text}</div>}
    </div>
  );
});

function WorkingIndicator({ model }: { model: string }) {
  const loading = useModelLoading(model);
  if (loading)
    return (
      <span className="muted pulse">
        <span role="status">{loading.label}</span> <span aria-hidden>{loading.detail}</span>
      </span>
    );
  return (
    <span className="working" role="status" aria-label="Working">
      <i /> <i /> <i />
    </span>
  );
}

function Outcome({ run }: { run?: RunState }) {
  if (run?.status === "cancelled")
    return <p className="stopped">Stopped.{run.text && " The agent will not see this partial answer."}</p>;
  if (run?.status !== "failed") return null;
  return (
    <Alert
      type="error"
      showIcon
      title="The run failed"
      description={run.error ? toSentence(run.error) : "No error message was provided."}
      className="failed"
    />
  );
}

function AnswerFooter({ item, actions }: Props) {
  const usage = answerUsage(item);
  const text = messageText(item.messages);
  const last = item.messages.at(-1);
  return (
    <footer className="message-footer">
      <span className="actions">
        {text && <CopyButton text={text} label="Copy answer" />}
        <RetryButton item={item} actions={actions} />
        {last && (
          <ActionButton
            icon="fork"
            label="Fork from here"
            hint="Continue from here in a new chat"
            onClick={() => actions.fork(last.id)}
          />
        )}
        {item.runId && (
          <RouteLink
            className="action"
            to={{ view: "runs", id: item.runId }}
            aria-label="View run timeline"
            title="View run timeline"
          >
            <Icon name="clock" />
          </RouteLink>
        )}
      </span>
      {usage && <UsageSummary usage={usage} />}
    </footer>
  );
}

function UsageSummary({ usage: { input, output, cached, cost, estimated } }: { usage: AnswerUsage }) {
  const details = `${input} input tokens${cached ? ` (${cached} cached)` : ""}, ${output} output tokens${estimated ? ", estimated" : ""}`;
  return (
    <span className="usage" title={details}>
      {estimated ? "≈ " : ""}
      {formatCount(input + output)} tokens{cost !== undefined ? ` · ${formatCost(cost)}` : ""}
    </span>
  );
}

const RETRY = { icon: "retry", label: "Try again", hint: "Try again with another agent or model" } as const;

/** The menu is rendered on the first click only, because every answer has this button. */
function RetryButton({ item, actions }: Props) {
  const [clicked, setClicked] = useState(false);
  return clicked ? (
    <RetryMenu item={item} actions={actions} />
  ) : (
    <ActionButton {...RETRY} onClick={() => setClicked(true)} />
  );
}

function RetryMenu({ item, actions }: Props) {
  const [open, setOpen] = useState(false);
  const { agents, models } = useAppState();
  useEffect(() => setOpen(true), []); // the menu is positioned at the button, which must be rendered first
  const available = models.filter((model) => model.available && model.id.includes("/"));
  const choices = [
    { key: "again", label: "Try again" },
    {
      key: "models",
      label: "With another model",
      disabled: available.length === 0,
      children: available.map((model) => ({ key: `model ${model.id}`, label: model.id })),
    },
    {
      key: "agents",
      label: "With another agent",
      children: agents.map((agent) => ({
        key: `agent ${agent.id}`,
        label: `${agent.name || agent.id} · ${agent.model}`,
      })),
    },
  ];
  const retry = (key: string) => {
    const [kind, ...rest] = key.split(" ");
    const id = rest.join(" ");
    actions.retry(item, kind === "model" ? { model: id } : kind === "agent" ? { agentId: id, model: "" } : {});
  };
  return (
    <DropdownMenu items={choices} onSelect={retry} open={open} onOpenChange={setOpen}>
      <ActionButton {...RETRY} />
    </DropdownMenu>
  );
}
