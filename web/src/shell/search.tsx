// Finding a session by its name or by what was said in it.

import { SearchOutlined } from "@ant-design/icons";
import { Empty, Input, Modal, Spin } from "antd";
import { type KeyboardEvent, useEffect, useMemo, useState } from "react";
import { useAtlas, useHouse } from "../state/use";
import { whenOf } from "../state/words";
import type { Hit } from "../wire";
import { useFocusBack } from "./focus";
import { go } from "./route";

export default function Search({ onClose }: { onClose: () => void }) {
  const atlas = useAtlas();
  const { sessions } = useHouse();
  const [query, setQuery] = useState("");
  const [found, setFound] = useState<{ hits: Hit[]; complete: boolean }>();
  const [place, setPlace] = useState(0);
  useFocusBack();
  const words = query.trim();
  useEffect(() => {
    setFound(undefined);
    setPlace(0);
    if (!words) return;
    let wanted = true;
    const timer = setTimeout(() => {
      atlas.ask("sessions.search", { query: words }).then(
        ({ hits, complete }) => wanted && setFound({ hits, complete: complete ?? true }),
        () => wanted && setFound({ hits: [], complete: false }),
      );
    }, 180);
    return () => {
      wanted = false;
      clearTimeout(timer);
    };
  }, [atlas, words]);
  const hits = useMemo<Hit[]>(
    () => (words ? (found?.hits ?? []) : sessions.slice(0, 8).map((session) => ({ session }))),
    [words, found, sessions],
  );
  const pick = (hit: Hit | undefined) => {
    if (!hit) return;
    go({ view: "chat", id: hit.session.sessionKey });
    onClose();
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setPlace(Math.min(place + 1, hits.length - 1));
    else if (event.key === "ArrowUp") setPlace(Math.max(place - 1, 0));
    else if (event.key === "Enter") pick(hits[place]);
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
        placeholder="Search in names and messages"
        aria-label="Search in names and messages"
        value={query}
        autoFocus
        onChange={(event) => setQuery(event.target.value)}
        onKeyDown={keys}
      />
      <ul>
        {hits.map((hit, number) => (
          <li key={hit.session.sessionKey}>
            <button
              type="button"
              className={number === place ? "hit active" : "hit"}
              onMouseEnter={() => setPlace(number)}
              onClick={() => pick(hit)}
            >
              <span className="name">{hit.session.label || "New chat"}</span>
              <time>{whenOf(hit.session.updatedAt)}</time>
              {hit.excerpt && <span className="excerpt">{hit.excerpt}</span>}
            </button>
          </li>
        ))}
      </ul>
      {words && !found && <Spin size="small" className="middle" />}
      {words && found?.hits.length === 0 && (
        <Empty image={Empty.PRESENTED_IMAGE_SIMPLE} description="Nothing was said with these words." />
      )}
      {found && !found.complete && found.hits.length > 0 && (
        <p className="quiet">There may be more; more words find them sooner.</p>
      )}
    </Modal>
  );
}
