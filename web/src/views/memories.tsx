// Memories: what agents remember about the user. Edit and forget them.

import { BulbOutlined } from "@ant-design/icons";
import { App, Button, Input, Select, Tag } from "antd";
import { useState } from "react";
import { RouteLink } from "../components/link";
import { RequestError } from "../net/connection";
import { formatDateTime } from "../state/format";
import { useAppState, useClient, useQuery, useResourceReload, useScope } from "../state/hooks";
import type { MemoryShape } from "../wire";
import { EmptyState, KNOWLEDGE_TABS, QueryResult, View } from "./view";

export default function Memories() {
  const { agents } = useAppState();
  const [chosen, setChosen] = useState<string>();
  const agentId = chosen ?? agents.find((agent) => agent.default)?.id ?? agents[0]?.id;
  return (
    <View
      title="Memories"
      description="What agents remember about you from earlier chats. Only you see it."
      tabs={KNOWLEDGE_TABS}
    >
      {agentId && (
        <>
          <div className="row">
            <span>Agent</span>
            <Select
              aria-label="Agent"
              value={agentId}
              onChange={setChosen}
              options={agents.map((agent) => ({ value: agent.id, label: agent.name || agent.id }))}
              popupMatchSelectWidth={false}
            />
          </div>
          <MemoryList key={agentId} agentId={agentId} />
        </>
      )}
    </View>
  );
}

function MemoryList({ agentId }: { agentId: string }) {
  const client = useClient();
  const canWrite = useScope("write");
  const { modal, message } = App.useApp();
  const [search, setSearch] = useState("");
  const memories = useQuery("memories.list", { agentId, limit: 500, ...(search ? { query: search } : {}) });
  useResourceReload("memory", memories.reload);
  const forgetAll = (count: number) =>
    modal.confirm({
      title: `Forget ${count === 1 ? "1 memory" : `${count} memories`}?`,
      content: "This can't be undone.",
      okText: "Forget all",
      okButtonProps: { danger: true },
      onOk: () =>
        client
          .request("memories.clear", { agentId })
          .then(memories.reload, (error: Error) => void message.error(error.message)),
    });
  return (
    <>
      <div className="filters">
        <Input.Search
          aria-label="Search memories"
          placeholder="Search memories"
          allowClear
          onSearch={(text) => setSearch(text.trim())}
        />
        {canWrite && !search && (memories.data?.memories.length ?? 0) > 0 && (
          <Button danger onClick={() => forgetAll(memories.data?.memories.length ?? 0)}>
            Forget all
          </Button>
        )}
      </div>
      <QueryResult query={memories}>
        {(result) =>
          result.memories.length ? (
            <ul className="item-list" aria-label="Memories">
              {result.memories.map((memory) => (
                <MemoryItem
                  key={memory.id}
                  memory={memory}
                  agentId={agentId}
                  canWrite={canWrite}
                  onChange={memories.reload}
                />
              ))}
            </ul>
          ) : search ? (
            <p className="muted">No memory matches “{search}”.</p>
          ) : (
            <EmptyState icon={<BulbOutlined aria-hidden />} title="Nothing remembered about you yet">
              Agents remember something when you ask them to.
            </EmptyState>
          )
        }
      </QueryResult>
    </>
  );
}

interface ItemProps {
  memory: MemoryShape;
  agentId: string;
  canWrite: boolean;
  onChange: () => void;
}

function MemoryItem({ memory, agentId, canWrite, onChange }: ItemProps) {
  const client = useClient();
  const { modal, message } = App.useApp();
  const [draft, setDraft] = useState<string>();
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const save = async () => {
    setBusy(true);
    try {
      const text = (draft ?? "").trim();
      await client.request("memories.put", { agentId, id: memory.id, text, expectedVersion: memory.version ?? null });
      setDraft(undefined);
      setError("");
      onChange();
    } catch (failure) {
      const current = failure instanceof RequestError ? failure.current : undefined;
      setError(
        current ? `This memory was changed in the meantime: “${String(current.value)}”` : (failure as Error).message,
      );
      if (current) onChange(); // a second attempt then overwrites what is shown in the message
    } finally {
      setBusy(false);
    }
  };
  const forget = () =>
    modal.confirm({
      title: "Forget this memory?",
      content: "This can't be undone.",
      okText: "Forget",
      okButtonProps: { danger: true },
      onOk: () =>
        client
          .request("memories.forget", { agentId, id: memory.id })
          .then(onChange, (failure: Error) => void message.error(failure.message)),
    });
  return (
    <li>
      <div className="item-main">
        {draft === undefined ? (
          <span className="memory-text">{memory.text}</span>
        ) : (
          <Input.TextArea
            aria-label="Memory"
            autoFocus
            autoSize
            maxLength={4000}
            value={draft}
            onChange={(event) => setDraft(event.target.value)}
            onKeyDown={(event) => event.key === "Escape" && setDraft(undefined)}
          />
        )}
        {error && (
          <span className="error" role="alert">
            {error}
          </span>
        )}
        <span className="muted">
          {formatDateTime(memory.createdAt)}
          {memory.sessionKey && (
            <>
              {" · "}
              <RouteLink to={{ view: "chat", id: memory.sessionKey }}>Source chat</RouteLink>
            </>
          )}{" "}
          {memory.tags?.map((tag) => (
            <Tag key={tag}>{tag}</Tag>
          ))}
        </span>
      </div>
      {canWrite && (
        <div className="row">
          {draft === undefined ? (
            <>
              <Button onClick={() => setDraft(memory.text)}>Edit</Button>
              <Button onClick={forget}>Forget</Button>
            </>
          ) : (
            <>
              <Button onClick={() => setDraft(undefined)}>Cancel</Button>
              <Button type="primary" loading={busy} disabled={!draft.trim()} onClick={() => void save()}>
                Save
              </Button>
            </>
          )}
        </div>
      )}
    </li>
  );
}
