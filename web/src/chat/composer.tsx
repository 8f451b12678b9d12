// Where a person writes. What is not sent yet is kept; what is sent during a turn waits for the next.

import { ArrowUpOutlined, CloseOutlined, FileOutlined, PaperClipOutlined, RobotOutlined } from "@ant-design/icons";
import { Sender } from "@ant-design/x";
import { App, Button, Select, Tooltip } from "antd";
import { type ComponentRef, type KeyboardEvent, useEffect, useRef, useState } from "react";
import { draftOf, keepDraft } from "../state/drafts";
import { useAtlas, useHouse } from "../state/use";
import { type Attachment, attachmentOf } from "./attachments";

interface Props {
  sessionKey: string;
  running: boolean;
  agentId: string;
  onAgent: (agentId: string) => void;
}

const RESERVE = 64 * 1024;

export function Composer({ sessionKey, running, agentId, onAgent }: Props) {
  const atlas = useAtlas();
  const { agents, maxFrame, principal } = useHouse();
  const { message } = App.useApp();
  const [text, setText] = useState(() => draftOf(sessionKey));
  const [files, setFiles] = useState<Attachment[]>([]);
  const sender = useRef<ComponentRef<typeof Sender>>(null);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => keepDraft(sessionKey, text), [sessionKey, text]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) sender.current?.focus();
  }, [sessionKey]);

  const ready = text.trim() !== "" || files.length > 0;
  const may = principal?.scopes.includes("write") ?? true;
  const submit = () => {
    if (!ready || !may) return;
    atlas.say(
      text.trim(),
      files.map((file) => file.part),
      { agentId },
    );
    setText("");
    setFiles([]);
  };
  const attach = async (list: FileList | null) => {
    for (const file of Array.from(list ?? [])) {
      try {
        const used = files.reduce((sum, each) => sum + each.size, 0);
        const made = await attachmentOf(file, maxFrame - RESERVE - used - text.length);
        setFiles((before) => [...before, made]);
      } catch (error) {
        message.error((error as Error).message);
      }
    }
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return undefined;
    event.preventDefault();
    submit();
    return false;
  };
  return (
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
        onKeyDown={keys}
        onPasteFile={(list) => void attach(list)}
        autoSize={{ minRows: 1, maxRows: 10 }}
        disabled={!may}
        placeholder={
          may ? (running ? "Write on; it waits for its turn" : "Write a message") : "Your token may only read"
        }
        header={
          files.length > 0 && <Chips files={files} onDrop={(id) => setFiles(files.filter((file) => file.id !== id))} />
        }
        suffix={false}
        footer={
          <div className="row">
            <Tooltip title="Add a picture or a file">
              <Button
                type="text"
                icon={<PaperClipOutlined aria-hidden />}
                aria-label="Add a picture or a file"
                onClick={() => picker.current?.click()}
              />
            </Tooltip>
            <input
              ref={picker}
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
                value={agentId || agents.find((each) => each.default)?.id}
                onChange={onAgent}
                options={agents.map((agent) => ({ value: agent.id, label: agent.name || agent.id }))}
              />
            )}
            <span className="spread" />
            {running && (
              <Tooltip title="Stop (Esc)">
                <Button
                  shape="circle"
                  aria-label="Stop"
                  icon={<span className="stop" aria-hidden />}
                  onClick={() => atlas.stop()}
                />
              </Tooltip>
            )}
            <Button
              type="primary"
              shape="circle"
              aria-label="Send"
              icon={<ArrowUpOutlined aria-hidden />}
              disabled={!ready || !may}
              onClick={submit}
            />
          </div>
        }
      />
    </div>
  );
}

function Chips({ files, onDrop }: { files: Attachment[]; onDrop: (id: string) => void }) {
  return (
    <ul className="chips" aria-label="Attached">
      {files.map((file) => (
        <li key={file.id}>
          {file.part.type === "image" ? (
            <img src={`data:${file.part.mediaType};base64,${file.part.data}`} alt="" />
          ) : (
            <FileOutlined aria-hidden />
          )}
          <span>{file.name}</span>
          <Button
            type="text"
            size="small"
            icon={<CloseOutlined aria-hidden />}
            aria-label={`Remove ${file.name}`}
            onClick={() => onDrop(file.id)}
          />
        </li>
      ))}
    </ul>
  );
}
