// What a person said: in the session, or still on its way there.

import { ClockCircleOutlined, CloseOutlined, FileOutlined, LoadingOutlined, RedoOutlined } from "@ant-design/icons";
import { Button, Input } from "antd";
import { memo, useState } from "react";
import { CopyButton } from "../markdown/code";
import type { Part } from "../state/kinds";
import type { Outgoing } from "../state/talk";
import type { Said } from "../state/turns";
import { wordsOf } from "../state/turns";
import { timeOf } from "../state/words";
import { Act } from "./act";
import { Picture } from "./picture";

export interface SaidActs {
  edit: (item: Said, text: string) => void;
  fork: (messageId: string) => void;
}

export const SaidItem = memo(
  function SaidItem({ item, acts }: { item: Said; acts: SaidActs }) {
    const [editing, setEditing] = useState(false);
    const words = wordsOf([item.message]);
    if (editing)
      return <Edit text={words} onCancel={() => setEditing(false)} onSend={(text) => acts.edit(item, text)} />;
    return (
      <article className="said" aria-label="You said" data-message={item.message.id}>
        <Bubble parts={item.message.parts} />
        <footer className="foot">
          <time dateTime={new Date(item.message.createdAt).toISOString()}>{timeOf(item.message.createdAt)}</time>
          <span className="acts">
            <Act
              icon="edit"
              what="Edit and send again"
              hint="Edit and send again; this session stays as it is"
              onClick={() => setEditing(true)}
            />
            <Act
              icon="fork"
              what="Fork from here"
              hint="Go on from here in a new session"
              onClick={() => acts.fork(item.message.id)}
            />
            <CopyButton text={words} what="Copy message" />
          </span>
        </footer>
      </article>
    );
  },
  (before, after) => before.item.message === after.item.message && before.acts === after.acts,
);

function Edit({ text, onSend, onCancel }: { text: string; onSend: (text: string) => void; onCancel: () => void }) {
  const [value, setValue] = useState(text);
  const ready = value.trim() !== "";
  return (
    <div className="said editing">
      <Input.TextArea
        aria-label="Your message"
        value={value}
        autoSize={{ minRows: 2, maxRows: 14 }}
        autoFocus
        onChange={(event) => setValue(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") onCancel();
          else if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing && ready) {
            event.preventDefault();
            onSend(value);
          }
        }}
      />
      <footer className="row">
        <span className="quiet">Goes on in a new session; this one stays as it is.</span>
        <Button onClick={onCancel}>Back</Button>
        <Button type="primary" disabled={!ready} onClick={() => onSend(value)}>
          Send
        </Button>
      </footer>
    </div>
  );
}

export const LeavingItem = memo(function LeavingItem({
  outgoing,
  offline,
  again,
  drop,
}: {
  outgoing: Outgoing;
  offline: boolean;
  again: () => void;
  drop: () => void;
}) {
  return (
    <article className={`said leaving is-${outgoing.state}`} aria-label="You said" data-outgoing={outgoing.state}>
      <Bubble parts={outgoing.parts} />
      <footer className="foot shown">
        {outgoing.state === "queued" && (
          <>
            <ClockCircleOutlined aria-hidden /> Waits for its turn
            <Button type="text" size="small" icon={<CloseOutlined aria-hidden />} onClick={drop}>
              Take back
            </Button>
          </>
        )}
        {outgoing.state === "sending" &&
          (offline ? <>Goes out when the gateway is back</> : <LoadingOutlined aria-label="On its way" />)}
        {outgoing.state === "failed" && (
          <>
            <span className="bad" role="alert">
              Not sent: {outgoing.error}
            </span>
            <Button type="text" size="small" icon={<RedoOutlined aria-hidden />} onClick={again}>
              Try again
            </Button>
            <Button type="text" size="small" icon={<CloseOutlined aria-hidden />} onClick={drop}>
              Drop
            </Button>
          </>
        )}
      </footer>
    </article>
  );
});

function Bubble({ parts }: { parts: readonly Part[] }) {
  const text = parts
    .map((part) => (part.type === "text" ? part.text : ""))
    .filter(Boolean)
    .join("\n\n");
  return (
    <div className="bubble">
      {parts.map((part, place) => {
        if (part.type === "image")
          return part.data ? (
            <Picture
              key={place}
              picture={{ kind: part.mediaType, data: part.data, name: "" }}
              what="Attached picture"
            />
          ) : null;
        if (part.type === "file")
          return (
            <span key={place} className="file">
              <FileOutlined aria-hidden /> {part.name}
            </span>
          );
        return null;
      })}
      {text && <div className="words">{text}</div>}
    </div>
  );
}
