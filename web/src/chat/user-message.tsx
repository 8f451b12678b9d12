// Messages of the user: those in the session, and those still pending.

import { ClockCircleOutlined, CloseOutlined, LoadingOutlined, RedoOutlined } from "@ant-design/icons";
import { Button } from "antd";
import { memo, useMemo, useState } from "react";
import { ActionButton, CopyButton } from "../components/buttons";
import { Input } from "../components/input";
import { RouteLink } from "../components/link";
import { Markdown } from "../markdown/markdown";
import { versionsAt } from "../state/branches";
import { messageText, type UserItem } from "../state/conversation";
import { formatIdentifier, formatTime } from "../state/format";
import { useAppState, useClient } from "../state/hooks";
import type { MessagePart, PendingMessage as Pending } from "../state/session";
import { FileCard } from "./file-card";
import { ImageThumbnail } from "./image";

export interface UserMessageActions {
  edit: (item: UserItem, text: string) => void;
  fork: (messageId: string) => void;
}

export const UserMessage = memo(
  function UserMessage({ item, actions }: { item: UserItem; actions: UserMessageActions }) {
    const [editing, setEditing] = useState(false);
    const { id, parts, createdAt, origin } = item.message;
    const text = messageText([item.message]);
    if (editing)
      return (
        <MessageEditor text={text} onCancel={() => setEditing(false)} onSend={(edited) => actions.edit(item, edited)} />
      );
    return (
      <article className="user-message" aria-label="Your message" data-message={id}>
        <Bubble parts={parts} />
        <footer className="message-footer">
          <time dateTime={new Date(createdAt).toISOString()}>{formatTime(createdAt)}</time>
          {origin?.kind === "channel" && <span>via {formatIdentifier(origin.id)}</span>}
          {item.previousId !== undefined && <Versions previousId={item.previousId} />}
          <span className="actions">
            <ActionButton
              icon="edit"
              label="Edit message"
              hint="Edit and send again. Your earlier version is kept."
              onClick={() => setEditing(true)}
            />
            <ActionButton
              icon="fork"
              label="Fork from here"
              hint="Continue from here in a new chat"
              onClick={() => actions.fork(id)}
            />
            <CopyButton text={text} label="Copy message" />
          </span>
        </footer>
      </article>
    );
  },
  (previous, next) => previous.item.message === next.item.message && previous.actions === next.actions,
);

/** Pages through the versions of an edited message. */
function Versions({ previousId }: { previousId: string }) {
  const { sessions } = useAppState();
  const { key } = useClient().session.current;
  const versions = useMemo(() => versionsAt(sessions, key, previousId), [sessions, key, previousId]);
  if (!versions) return null;
  const { keys, current } = versions;
  const page = (step: number, label: string, sign: string) => {
    const target = keys[current + step];
    return target ? (
      <RouteLink to={{ view: "chat", id: target }} className="action" aria-label={label}>
        {sign}
      </RouteLink>
    ) : (
      <span className="action disabled" aria-hidden>
        {sign}
      </span>
    );
  };
  return (
    <span className="versions">
      {page(-1, "Previous version", "‹")}
      {current + 1}/{keys.length}
      {page(1, "Next version", "›")}
    </span>
  );
}

interface EditorProps {
  text: string;
  onSend: (text: string) => void;
  onCancel: () => void;
}

function MessageEditor({ text, onSend, onCancel }: EditorProps) {
  const [value, setValue] = useState(text);
  const ready = value.trim() !== "";
  return (
    <div className="user-message editing">
      <Input.TextArea
        aria-label="Edit message"
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
        <span className="muted">Your earlier version is kept.</span>
        <Button onClick={onCancel}>Cancel</Button>
        <Button type="primary" disabled={!ready} onClick={() => onSend(value)}>
          Send
        </Button>
      </footer>
    </div>
  );
}

interface PendingProps {
  message: Pending;
  offline: boolean;
  onRetry: () => void;
  onCancel: () => void;
}

export const PendingMessage = memo(function PendingMessage({ message, offline, onRetry, onCancel }: PendingProps) {
  return (
    <article
      className={`user-message pending is-${message.state}`}
      aria-label="Your message"
      data-pending={message.state}
    >
      <Bubble parts={message.parts} />
      <footer className="message-footer always-visible">
        {message.state === "queued" && (
          <>
            <ClockCircleOutlined aria-hidden /> {message.steer ? "Steering after the current tool calls" : "Queued"}
            <Button type="text" size="small" icon={<CloseOutlined aria-hidden />} onClick={onCancel}>
              Cancel
            </Button>
          </>
        )}
        {message.state === "sending" &&
          (offline ? <>Will be sent when reconnected</> : <LoadingOutlined aria-label="Sending" />)}
        {message.state === "failed" && (
          <>
            <span className="error" role="alert">
              Not sent: {message.error}
            </span>
            <Button type="text" size="small" icon={<RedoOutlined aria-hidden />} onClick={onRetry}>
              Retry
            </Button>
            <Button type="text" size="small" icon={<CloseOutlined aria-hidden />} onClick={onCancel}>
              Discard
            </Button>
          </>
        )}
      </footer>
    </article>
  );
});

function Bubble({ parts }: { parts: readonly MessagePart[] }) {
  const text = parts
    .map((part) => (part.type === "text" ? part.text : ""))
    .filter(Boolean)
    .join("\n\n");
  return (
    <div className="bubble">
      {parts.map((part, index) => {
        if (part.type === "image" && part.data) {
          const image = { mediaType: part.mediaType, data: part.data, name: "" };
          return <ImageThumbnail key={index} image={image} label="Attached image" />;
        }
        if (part.type === "file") return <FileCard key={index} file={part} />;
        return null;
      })}
      {text && <Markdown text={text} breaks />}
    </div>
  );
}
