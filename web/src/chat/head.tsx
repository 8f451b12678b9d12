// The line above a session: its name, and what can be done with the whole of it.

import {
  DeleteOutlined,
  DownloadOutlined,
  EditOutlined,
  EllipsisOutlined,
  FileMarkdownOutlined,
  InboxOutlined,
} from "@ant-design/icons";
import { App, Button, Input } from "antd";
import { useState } from "react";
import { Menu } from "../shell/menu";
import { go, newChat } from "../shell/route";
import type { Talk } from "../state/talk";
import { useAtlas } from "../state/use";
import { exportSession } from "./export";

export function ChatHead({ talk }: { talk: Talk }) {
  const atlas = useAtlas();
  const { message, modal } = App.useApp();
  const [name, setName] = useState<string>();
  const { session, key } = talk;
  if (!session?.createdAt) return null;
  const told = (work: Promise<unknown>, done?: string) =>
    work.then(
      () => void (done && message.success(done)),
      (error: Error) => void message.error(error.message),
    );
  const rename = () => {
    if (name !== undefined && name.trim() && name !== session.label)
      void told(atlas.ask("sessions.update", { sessionKey: key, label: name.trim() }));
    setName(undefined);
  };
  const archive = () => {
    void told(
      atlas.ask("sessions.update", { sessionKey: key, archived: !session.archived }),
      session.archived ? "Back among the others." : "Put away; the search still finds it.",
    );
    if (!session.archived) go(newChat());
  };
  const remove = () =>
    modal.confirm({
      title: "Remove this session?",
      content: "Its messages and turns are gone for good. The audit log stays.",
      okText: "Remove",
      okButtonProps: { danger: true },
      cancelText: "Keep",
      onOk: () =>
        atlas
          .ask("sessions.delete", { sessionKey: key })
          .then(() => go(newChat()))
          .catch((error: Error) => void message.error(error.message)),
    });
  return (
    <header className="chat-head">
      {name === undefined ? (
        <h2 title={session.label} onDoubleClick={() => setName(session.label)}>
          {session.label || "New chat"}
        </h2>
      ) : (
        <Input
          aria-label="Name of this session"
          value={name}
          maxLength={200}
          autoFocus
          onChange={(event) => setName(event.target.value)}
          onBlur={rename}
          onPressEnter={rename}
          onKeyDown={(event) => event.key === "Escape" && (event.preventDefault(), setName(undefined))}
        />
      )}
      <Menu
        items={[
          { key: "rename", icon: <EditOutlined aria-hidden />, label: "Rename", onClick: () => setName(session.label) },
          {
            key: "markdown",
            icon: <FileMarkdownOutlined aria-hidden />,
            label: "Export as Markdown",
            onClick: () => void told(exportSession(atlas, key, session.label, "markdown")),
          },
          {
            key: "json",
            icon: <DownloadOutlined aria-hidden />,
            label: "Export as JSON",
            onClick: () => void told(exportSession(atlas, key, session.label, "json")),
          },
          {
            key: "archive",
            icon: <InboxOutlined aria-hidden />,
            label: session.archived ? "Take out of the archive" : "Archive",
            onClick: archive,
          },
          { type: "divider" },
          { key: "delete", icon: <DeleteOutlined aria-hidden />, label: "Remove…", danger: true, onClick: remove },
        ]}
      >
        <Button type="text" icon={<EllipsisOutlined aria-hidden />} aria-label="More for this session" />
      </Menu>
    </header>
  );
}
