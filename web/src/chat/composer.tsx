// Message composer with attachments and agent selection. Drafts are saved; messages sent during a run are queued, or
// steer it.

import {
  ArrowUpOutlined,
  CloseOutlined,
  DownOutlined,
  FileOutlined,
  PaperClipOutlined,
  RobotOutlined,
} from "@ant-design/icons";
import { Button, Spin } from "antd";
import { type KeyboardEvent, lazy, memo, Suspense, useEffect, useRef, useState } from "react";
import { useFeedback } from "../components/feedback";
import { Popover } from "../components/popover";
import { Sender, type SenderHandle } from "../components/sender";
import { loadDraft, saveDraft } from "../state/drafts";
import { formatIdentifier } from "../state/format";
import { useAppState, useClient } from "../state/hooks";
import { type Attachment, readAttachment } from "./attachments";
import { useMention } from "./mention";
import type { ModelChoice } from "./model-picker";

interface Props {
  sessionKey: string;
  running: boolean;
  agentId: string;
  onAgentChange: (agentId: string) => void;
  choice: ModelChoice;
  onChoice: (choice: ModelChoice) => void;
}

/** Bytes of a frame that are left for everything but text and attachments. */
const FRAME_OVERHEAD = 64 * 1024;

/** Rendered again when its properties change, not with each part of a streamed answer. */
export const Composer = memo(function Composer(props: Props) {
  const { sessionKey, running, agentId, onAgentChange, choice, onChoice } = props;
  const client = useClient();
  const { agents, maxFrameBytes, principal } = useAppState();
  const { message: toast } = useFeedback();
  const [text, setText] = useState(() => loadDraft(sessionKey));
  const [attachments, setAttachments] = useState<Attachment[]>([]);
  const sender = useRef<SenderHandle>(null);
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
      { agentId, ...choice, steer: steer && running },
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
  const mention = useMention(text, setText, onAgentChange);
  const handleKeyDown = (event: KeyboardEvent) => {
    if (mention.handleKeyDown(event)) return false;
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
      {mention.list}
      <Sender
        ref={sender}
        value={text}
        onChange={mention.change}
        onKeyDown={handleKeyDown}
        onPasteFile={(files) => void attach(files)}
        disabled={!canWrite}
        placeholder={!canWrite ? "You have view-only access." : running ? "Add a follow-up…" : "Write a message"}
        header={
          attachments.length > 0 && (
            <AttachmentList
              attachments={attachments}
              onRemove={(id) => setAttachments(attachments.filter((attachment) => attachment.id !== id))}
            />
          )
        }
        footer={
          <div className="row">
            <Button
              title="Attach files"
              type="text"
              icon={<PaperClipOutlined aria-hidden />}
              aria-label="Attach files"
              onClick={() => fileInput.current?.click()}
            />
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
              <label className="agent-select">
                <RobotOutlined aria-hidden />
                <select
                  aria-label="Agent"
                  value={agentId || agents.find((agent) => agent.default)?.id}
                  onChange={(event) => onAgentChange(event.target.value)}
                >
                  {agents.map((agent) => (
                    <option key={agent.id} value={agent.id}>
                      {agent.name || agent.id}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <ModelButton agentId={agentId} choice={choice} onChange={onChoice} />
            <span className="spacer" />
            {running && (
              <Button
                title="Stop (Esc)"
                shape="circle"
                aria-label="Stop"
                icon={<span className="stop-icon" aria-hidden />}
                onClick={() => client.stopRun()}
              />
            )}
            {running && ready && canWrite && (
              <Button
                title="Send after the current tool calls, without waiting for the end (Alt+Enter)"
                type="text"
                onClick={() => submit(true)}
              >
                Steer
              </Button>
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
});

const ModelPicker = lazy(() => import("./model-picker"));

/** The model in use; opens the choice of model and effort. */
function ModelButton(props: { agentId: string; choice: ModelChoice; onChange: (choice: ModelChoice) => void }) {
  const { agentId, choice } = props;
  const { agents } = useAppState();
  const agent = agents.find(({ id }) => id === agentId) ?? agents.find((each) => each.default);
  const model = choice.model || agent?.model || "";
  const name = model.slice(model.indexOf("/") + 1) || "Model";
  const effort = choice.effort && ` · ${formatIdentifier(choice.effort)}`;
  return (
    <Popover
      placement="topLeft"
      content={
        <Suspense fallback={<Spin size="small" />}>
          <ModelPicker {...props} />
        </Suspense>
      }
    >
      <Button type="text" size="small" className="model-button" aria-label={`Model: ${name}${effort}`}>
        <span className="truncate">
          {name}
          {effort}
        </span>
        <DownOutlined aria-hidden />
      </Button>
    </Popover>
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
