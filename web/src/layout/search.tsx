// Search dialog: finds sessions by name or by the text of their messages.

import { SearchOutlined } from "@ant-design/icons";
import { Empty, Input, Modal, Spin } from "antd";
import { type KeyboardEvent, useEffect, useMemo, useState } from "react";
import { formatTimeOrDate } from "../state/format";
import { useAppState, useClient } from "../state/hooks";
import type { SessionHit } from "../wire";
import { useRestoreFocus } from "./focus";
import { navigate } from "./router";

const DEBOUNCE_MS = 180;

export default function SearchDialog({ onClose }: { onClose: () => void }) {
  const client = useClient();
  const { sessions } = useAppState();
  const [input, setInput] = useState("");
  const [found, setFound] = useState<{ hits: SessionHit[]; complete: boolean }>();
  const [selected, setSelected] = useState(0);
  useRestoreFocus();
  const query = input.trim();
  useEffect(() => {
    setFound(undefined);
    setSelected(0);
    if (!query) return;
    let stale = false;
    const timer = setTimeout(() => {
      client.request("sessions.search", { query }).then(
        ({ hits, complete }) => !stale && setFound({ hits, complete: complete ?? true }),
        () => !stale && setFound({ hits: [], complete: false }),
      );
    }, DEBOUNCE_MS);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [client, query]);
  const hits = useMemo<SessionHit[]>(
    () => (query ? (found?.hits ?? []) : sessions.slice(0, 8).map((session) => ({ session }))),
    [query, found, sessions],
  );
  const openHit = (hit: SessionHit | undefined) => {
    if (!hit) return;
    navigate({ view: "chat", id: hit.session.sessionKey });
    onClose();
  };
  const handleKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setSelected(Math.min(selected + 1, hits.length - 1));
    else if (event.key === "ArrowUp") setSelected(Math.max(selected - 1, 0));
    else if (event.key === "Enter") openHit(hits[selected]);
    else return;
    event.preventDefault();
  };
  return (
    <Modal
      open
      footer={null}
      closable={false}
      onCancel={onClose}
      width={560}
      className="search"
      title="Search"
      style={{ top: 80 }}
    >
      <Input
        size="large"
        variant="borderless"
        prefix={<SearchOutlined aria-hidden />}
        placeholder="Search chats and messages"
        aria-label="Search chats and messages"
        value={input}
        autoFocus
        onChange={(event) => setInput(event.target.value)}
        onKeyDown={handleKeyDown}
      />
      <ul>
        {hits.map((hit, index) => (
          <li key={hit.session.sessionKey}>
            <button
              type="button"
              className={index === selected ? "hit active" : "hit"}
              onMouseEnter={() => setSelected(index)}
              onClick={() => openHit(hit)}
            >
              <span className="name">{hit.session.label || "New chat"}</span>
              <time>{formatTimeOrDate(hit.session.updatedAt)}</time>
              {hit.excerpt && <span className="excerpt">{hit.excerpt}</span>}
            </button>
          </li>
        ))}
      </ul>
      {query && !found && <Spin size="small" className="centered" />}
      {query && found?.hits.length === 0 && (
        <Empty image={Empty.PRESENTED_IMAGE_SIMPLE} description={`No results for “${query}”`} />
      )}
      {found && !found.complete && found.hits.length > 0 && (
        <p className="muted">Not all messages were searched. Add more words to narrow your search.</p>
      )}
    </Modal>
  );
}
