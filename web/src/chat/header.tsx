// Chat header: the session's name, and a menu to rename, export, archive or delete it.

import {
  CopyOutlined,
  DeleteOutlined,
  DownloadOutlined,
  EditOutlined,
  EllipsisOutlined,
  FileMarkdownOutlined,
  FolderOutlined,
  InboxOutlined,
  PushpinOutlined,
} from "@ant-design/icons";
import { Button } from "antd";
import { memo, useState } from "react";
import type { Artifact, CodeSource } from "../artifacts/artifacts";
import { useFeedback } from "../components/feedback";
import { Input } from "../components/input";
import { DropdownMenu } from "../components/menu";
import { Modal } from "../components/modal";
import { navigate, newChat } from "../layout/router";
import { copyText } from "../state/clipboard";
import { useAppState, useClient } from "../state/hooks";
import type { SessionState } from "../state/session";
import { type ExportFormat, exportSession, sessionAsMarkdown } from "./export";

interface Props {
  sessionKey: string;
  session: SessionState["session"];
  artifacts: Artifact[];
  onArtifact: (source: CodeSource) => void;
}

/** Rendered again when the session or its artifacts change, not with each part of a streamed answer. */
export const ChatHeader = memo(function ChatHeader({ sessionKey: key, session, artifacts, onArtifact }: Props) {
  const client = useClient();
  const { message: toast, modal } = useFeedback();
  const [newName, setNewName] = useState<string>();
  const [folder, setFolder] = useState<string>();
  const { sessions } = useAppState();
  if (!session?.createdAt) return null;
  const showOutcome = (work: Promise<unknown>, success?: string) =>
    void work.then(
      () => {
        if (success) toast.success(success);
      },
      (error: Error) => {
        toast.error(error.message);
      },
    );
  const rename = () => {
    const label = newName?.trim();
    if (label && label !== session.label) showOutcome(client.request("sessions.update", { sessionKey: key, label }));
    setNewName(undefined);
  };
  const download = (format: ExportFormat) => showOutcome(exportSession(client, key, session.label, format));
  const update = (change: { pinned?: boolean; folder?: string }) =>
    showOutcome(client.request("sessions.update", { sessionKey: key, ...change }));
  const copy = () => showOutcome(sessionAsMarkdown(client, key, session.label).then(copyText), "Copied.");
  const moveToFolder = () => {
    if (folder !== undefined && folder.trim() !== (session.folder ?? "")) update({ folder: folder.trim() });
    setFolder(undefined);
  };
  const archive = (archived: boolean) =>
    client.request("sessions.update", { sessionKey: key, archived }).then(
      () => toast.success(archived ? "Archived." : "Unarchived.", () => void archive(!archived)),
      (error: Error) => toast.error(error.message),
    );
  const toggleArchived = () => {
    void archive(!session.archived);
    if (!session.archived) navigate(newChat());
  };
  const confirmDelete = () =>
    modal.confirm({
      title: "Delete this chat?",
      content: "Messages are removed permanently. The audit log keeps its entries.",
      okText: "Delete",
      okButtonProps: { danger: true },
      cancelText: "Cancel",
      onOk: () =>
        client.request("sessions.delete", { sessionKey: key }).then(
          () => navigate(newChat()),
          (error: Error) => void toast.error(error.message),
        ),
    });
  return (
    <header className="chat-header">
      {newName === undefined ? (
        <h2 title={session.label} onDoubleClick={() => setNewName(session.label)}>
          {session.label || "New chat"}
        </h2>
      ) : (
        <Input
          aria-label="Chat name"
          value={newName}
          maxLength={200}
          autoFocus
          onChange={(event) => setNewName(event.target.value)}
          onBlur={rename}
          onPressEnter={rename}
          onKeyDown={(event) => {
            if (event.key !== "Escape") return;
            event.preventDefault();
            setNewName(undefined);
          }}
        />
      )}
      <ArtifactsButton artifacts={artifacts} onOpen={onArtifact} />
      {folder !== undefined && (
        <Modal open title="Move to folder" okText="Move" onOk={moveToFolder} onCancel={() => setFolder(undefined)}>
          <Input
            aria-label="Folder"
            placeholder="Name of the folder; empty for none"
            list="folders"
            value={folder}
            maxLength={60}
            autoFocus
            onChange={(event) => setFolder(event.target.value)}
            onPressEnter={moveToFolder}
          />
          <datalist id="folders">
            {[...new Set(sessions.map((each) => each.folder))].filter(Boolean).map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
        </Modal>
      )}
      <DropdownMenu
        items={[
          {
            key: "rename",
            icon: <EditOutlined aria-hidden />,
            label: "Rename",
            onClick: () => setNewName(session.label),
          },
          {
            key: "pin",
            icon: <PushpinOutlined aria-hidden />,
            label: session.pinned ? "Unpin" : "Pin",
            onClick: () => update({ pinned: !session.pinned }),
          },
          {
            key: "folder",
            icon: <FolderOutlined aria-hidden />,
            label: "Move to folder…",
            onClick: () => setFolder(session.folder ?? ""),
          },
          { key: "copy", icon: <CopyOutlined aria-hidden />, label: "Copy as Markdown", onClick: copy },
          {
            key: "markdown",
            icon: <FileMarkdownOutlined aria-hidden />,
            label: "Export as Markdown",
            onClick: () => download("markdown"),
          },
          {
            key: "json",
            icon: <DownloadOutlined aria-hidden />,
            label: "Export as JSON",
            onClick: () => download("json"),
          },
          {
            key: "archive",
            icon: <InboxOutlined aria-hidden />,
            label: session.archived ? "Unarchive" : "Archive",
            onClick: toggleArchived,
          },
          { type: "divider" },
          {
            key: "delete",
            icon: <DeleteOutlined aria-hidden />,
            label: "Delete…",
            danger: true,
            onClick: confirmDelete,
          },
        ]}
      >
        <Button type="text" icon={<EllipsisOutlined aria-hidden />} aria-label="Chat options" />
      </DropdownMenu>
    </header>
  );
});

/** Opens the latest artifact of the chat. */
function ArtifactsButton({ artifacts, onOpen }: { artifacts: Artifact[]; onOpen: (source: CodeSource) => void }) {
  const latest = artifacts.at(-1);
  const code = latest?.versions.at(-1);
  if (!latest || code === undefined) return null;
  return (
    <Button size="small" onClick={() => onOpen({ language: latest.language, code })}>
      Artifacts {artifacts.length}
    </Button>
  );
}
