// Message composer with attachments and agent selection. Drafts are saved; messages sent during a run are queued, or
// steer it.

import { ArrowUpOutlined, CloseOutlined, FileOutlined, PaperClipOutlined, RobotOutlined } from "@ant-design/icons";
import { Sender } from "@ant-design/x";
import { App, Button, Select, Tooltip } from "antd";
import { type ComponentRef, type KeyboardEvent, useEffect, useRef, useState } from "react";
import { loadDraft, saveDraft } from "../state/drafts";
import { useAppState, useClient } from "../state/hooks";
import { type Attachment, readAttachment } from "./attachments";

interface Props {
  sessionKey: string;
  running: boolean;
  agentId: string;
  onAgentChange: (agentId: string) => void;
}

/** Bytes of a frame that are left for everything but text and attachments. */
const FRAME_OVERHEAD = 64 * 1024;

export function Composer({ sessionKey, running, agentId, onAgentChange }: Props) {
  const client = useClient();
  const { agents, maxFrameBytes, principal } = useAppState();
  const { message: toast } = App.useApp();
  const [text, setText] = useState(() => loadDraft(sessionKey));
  const [attachments, setAttachments] = useState<Attachment[]>([]);
  const sender = useRef<ComponentRef<typeof Sender>>(null);
  const fileInput = useRef<HTMLInputElement>(null);
  useEffect(() => saveDraft(sessionKey, text), [sessionKey, text]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) sender.current?.focus();
  }, []);

  const ready = text.trim() !== "" || attachments.length > 0;
  const canWrite = principal?.scopes.includes("write") ?? true;
  const submit = (steer = false) => {
    if (!ready || !canWrite) return;
    client.sendMessage(
      text.trim(),
      attachments.map((attachment) => attachment.part),
      { agentId, steer: steer && running },
    );
    setText("");
    setAttachments([]);
  };
  const attach = async (files: FileList | null) => {
    for (const file of Array.from(files ?? [])) {
      try {
        const used = attachments.reduce((total, attachment) => total + attachment.size, 0);
        const attachment = await readAttachment(file, maxFrameBytes - FRAME_OVERHEAD - used - text.length);
        setAttachments((previous) => [...previous, attachment]);
      } catch (error) {
        toast.error((error as Error).message);
      }
    }
  };
  const handleKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return undefined;
    event.preventDefault();
    submit(event.altKey);
    return false;
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping files is an addition to the attach button
    <div
      className="composer"
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void attach(event.dataTransfer.files);
      }}
    >
      <Sender
        ref={sender}
        value={text}
        onChange={(value) => setText(value)}
        onKeyDown={handleKeyDown}
        onPasteFile={(files) => void attach(files)}
        autoSize={{ minRows: 1, maxRows: 10 }}
        disabled={!canWrite}
        placeholder={!canWrite ? "Your token is read-only" : running ? "Queue a follow-up message" : "Write a message"}
        header={
          attachments.length > 0 && (
            <AttachmentList
              attachments={attachments}
              onRemove={(id) => setAttachments(attachments.filter((attachment) => attachment.id !== id))}
            />
          )
        }
        suffix={false}
        footer={
          <div className="row">
            <Tooltip title="Attach files">
              <Button
                type="text"
                icon={<PaperClipOutlined aria-hidden />}
                aria-label="Attach files"
                onClick={() => fileInput.current?.click()}
              />
            </Tooltip>
            <input
              ref={fileInput}
              type="file"
              multiple
              hidden
              onChange={(event) => {
                void attach(event.target.files);
                event.target.value = "";
              }}
            />
            {agents.length > 1 && (
              <Select
                aria-label="Agent"
                variant="borderless"
                size="small"
                popupMatchSelectWidth={false}
                prefix={<RobotOutlined aria-hidden />}
                value={agentId || agents.find((agent) => agent.default)?.id}
                onChange={onAgentChange}
                options={agents.map((agent) => ({ value: agent.id, label: agent.name || agent.id }))}
              />
            )}
            <span className="spacer" />
            {running && (
              <Tooltip title="Stop (Esc)">
                <Button
                  shape="circle"
                  aria-label="Stop"
                  icon={<span className="stop-icon" aria-hidden />}
                  onClick={() => client.stopRun()}
                />
              </Tooltip>
            )}
            {running && ready && canWrite && (
              <Tooltip title="Send after the current tool calls, without waiting for the end (Alt+Enter)">
                <Button type="text" onClick={() => submit(true)}>
                  Steer
                </Button>
              </Tooltip>
            )}
            <Button
              type="primary"
              shape="circle"
              aria-label="Send"
              icon={<ArrowUpOutlined aria-hidden />}
              disabled={!ready || !canWrite}
              onClick={() => submit()}
            />
          </div>
        }
      />
    </div>
  );
}

function AttachmentList({ attachments, onRemove }: { attachments: Attachment[]; onRemove: (id: string) => void }) {
  return (
    <ul className="attachments" aria-label="Attachments">
      {attachments.map(({ id, name, part }) => (
        <li key={id}>
          {part.type === "image" ? (
            <img src={`data:${part.mediaType};base64,${part.data}`} alt="" />
          ) : (
            <FileOutlined aria-hidden />
          )}
          <span>{name}</span>
          <Button
            type="text"
            size="small"
            icon={<CloseOutlined aria-hidden />}
            aria-label={`Remove ${name}`}
            onClick={() => onRemove(id)}
          />
        </li>
      ))}
    </ul>
  );
}
