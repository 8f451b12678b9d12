// Knowledge: documents that agents can cite. Upload, search and remove them.

import { BookOutlined, InboxOutlined } from "@ant-design/icons";
import { Alert, App, AutoComplete, Button, Input, Progress, Select, Tag, Upload } from "antd";
import { useRef, useState } from "react";
import { uploadFile } from "../net/upload";
import { formatBytes, formatDateTime, toSentence } from "../state/format";
import { useClient, usePages, useQuery, useResourceReload, useScope } from "../state/hooks";
import { toSafeLine } from "../state/unicode-safety";
import type { DocumentShape, Ingested, KnowledgeProgress, PassageShape } from "../wire";
import { EmptyState, KNOWLEDGE_TABS, LoadError, QueryResult, ShowMore, View } from "./view";

const ACCEPTED = ".md,.markdown,.mdx,.rst,.txt,.text,.html,.htm,.xhtml,.pdf,.docx";
const DEFAULT_CATEGORY = "general";
const PAGE_SIZE = 50;

export default function Knowledge() {
  const admin = useScope("admin");
  const [category, setCategory] = useState<string>();
  const [query, setQuery] = useState("");
  const documents = usePages("knowledge.list", { limit: PAGE_SIZE, ...(category ? { category } : {}) });
  useResourceReload("knowledge", documents.reload);
  const categories = documents.pages[0]?.categories ?? [];
  return (
    <View title="Knowledge" description="Documents that agents can search and cite." tabs={KNOWLEDGE_TABS}>
      {admin ? (
        <Uploader categories={categories} onDone={documents.reload} />
      ) : (
        <p className="muted">You can view this but not change it.</p>
      )}
      <div className="filters">
        <Input.Search
          aria-label="Search documents"
          placeholder="Search documents"
          allowClear
          onSearch={(text) => setQuery(text.trim())}
        />
        <Select
          aria-label="Category"
          placeholder="All categories"
          allowClear
          value={category}
          onChange={(value?: string) => setCategory(value)}
          options={categories.map((value) => ({ value, label: value }))}
        />
      </div>
      {query ? (
        <Passages query={query} category={category} />
      ) : (
        <QueryResult query={{ ...documents, data: documents.pages[0] }}>
          {() => (
            <>
              <DocumentList
                documents={documents.pages.flatMap((page) => page.documents)}
                admin={admin}
                onRemoved={documents.reload}
              />
              {documents.error && <LoadError what="documents" reason={documents.error} onRetry={documents.reload} />}
              {documents.hasMore && <ShowMore onClick={documents.loadMore} />}
            </>
          )}
        </QueryResult>
      )}
    </View>
  );
}

interface UploadItem {
  key: number;
  file: File;
  category: string;
  state: "waiting" | "uploading" | "reading" | "ready" | "notice" | "failed";
  share: number;
  text: string;
}

interface UploaderProps {
  categories: string[];
  onDone: () => void;
}

/** Uploads files one after the other; a failed one can be tried again. */
function Uploader({ categories, onDone }: UploaderProps) {
  const client = useClient();
  const [category, setCategory] = useState(DEFAULT_CATEGORY);
  const [items, setItems] = useState<UploadItem[]>([]);
  const queue = useRef(Promise.resolve());
  const keys = useRef(0);
  const update = (key: number, part: Partial<UploadItem>) =>
    setItems((before) => before.map((each) => (each.key === key ? { ...each, ...part } : each)));

  const process = async ({ key, file, category: target }: UploadItem) => {
    update(key, { state: "uploading", share: 0, text: "Uploading 0 %" });
    try {
      const { uploadId } = await uploadFile(file, (share) =>
        update(key, { share, text: `Uploading ${Math.round(share * 100)} %` }),
      );
      update(key, { state: "reading", share: 0, text: "Reading…" });
      const follow = ({ source, stored = 0, pieces = 0 }: KnowledgeProgress) => {
        if (source === uploadId && pieces)
          update(key, { share: stored / pieces, text: `Reading ${stored}/${pieces} passages` });
      };
      client.progressListeners.add(follow);
      try {
        update(key, outcomeOf(await client.request("knowledge.add", { uploadId, category: target })));
      } finally {
        client.progressListeners.delete(follow);
      }
      onDone();
    } catch (error) {
      update(key, { state: "failed", text: (error as Error).message });
    }
  };
  const enqueue = (item: UploadItem) => {
    queue.current = queue.current.then(() => process(item));
  };
  const add = (file: File) => {
    keys.current += 1;
    const target = category.trim() || DEFAULT_CATEGORY;
    const item: UploadItem = { key: keys.current, file, category: target, state: "waiting", share: 0, text: "Waiting" };
    setItems((before) => [...before, item]);
    enqueue(item);
  };
  return (
    <>
      <Upload.Dragger
        multiple
        accept={ACCEPTED}
        showUploadList={false}
        beforeUpload={(file) => {
          add(file);
          return false;
        }}
      >
        <p className="ant-upload-drag-icon">
          <InboxOutlined aria-hidden />
        </p>
        <p className="ant-upload-text">
          Drop PDF, Markdown, text, HTML or Word files here, or <strong>choose files</strong>
        </p>
        <p className="muted">At most 30 MB each.</p>
      </Upload.Dragger>
      <div className="row">
        <span>Category of new files</span>
        <AutoComplete
          aria-label="Category of new files"
          value={category}
          onChange={setCategory}
          options={categories.map((value) => ({ value }))}
          maxLength={100}
        />
      </div>
      {items.length > 0 && (
        <ul className="item-list" aria-label="Uploads">
          {items.map((item) => (
            <li key={item.key}>
              <div className="item-main">
                <strong className="item-name">{item.file.name}</strong>
                <span className={item.state === "failed" ? "error" : "muted"} role="status">
                  {item.text}
                </span>
                {(item.state === "uploading" || item.state === "reading") && (
                  <Progress
                    percent={Math.round(item.share * 100)}
                    size="small"
                    showInfo={false}
                    aria-label={`Progress of ${item.file.name}`}
                  />
                )}
              </div>
              {item.state === "failed" && <Button onClick={() => enqueue(item)}>Retry</Button>}
              {(item.state === "failed" || item.state === "notice" || item.state === "ready") && (
                <Button
                  type="text"
                  aria-label={`Dismiss ${item.file.name}`}
                  onClick={() => setItems((before) => before.filter((each) => each.key !== item.key))}
                >
                  Dismiss
                </Button>
              )}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

function outcomeOf({ skipped = [], copies = [], passages, changed, removed }: Ingested): Partial<UploadItem> {
  const [failure] = skipped;
  if (failure) return { state: "failed", text: `${toSentence(failure.reason)}.` };
  const [copy] = copies;
  if (copy) return { state: "notice", text: `Already uploaded as ${copy.original}.` };
  const replaced = removed || changed ? " · replaced the earlier version" : "";
  return { state: "ready", text: `Ready · ${passages === 1 ? "1 passage" : `${passages} passages`}${replaced}` };
}

function Passages({ query, category }: { query: string; category: string | undefined }) {
  const found = useQuery("knowledge.search", { query, maxResults: 20, ...(category ? { category } : {}) });
  return (
    <QueryResult query={found}>
      {({ results }) =>
        results.length ? (
          <ul className="item-list" aria-label="Passages">
            {results.map((each) => (
              <Passage key={`${each.source} ${each.position} ${each.text}`} passage={each} />
            ))}
          </ul>
        ) : (
          <p className="muted">No passage matches “{query}”.</p>
        )
      }
    </QueryResult>
  );
}

function Passage({ passage }: { passage: PassageShape }) {
  const place = [passage.heading, passage.position].filter(Boolean).join(" · ");
  return (
    <li className="passage">
      <div className="item-main">
        <span>
          <strong className="item-name">{toSafeLine(passage.name, 200)}</strong> <Tag>{passage.category}</Tag>
        </span>
        {place && <span className="muted">{place}</span>}
        <p>{passage.text}</p>
      </div>
    </li>
  );
}

interface DocumentListProps {
  documents: DocumentShape[];
  admin: boolean;
  onRemoved: () => void;
}

function DocumentList({ documents, admin, onRemoved }: DocumentListProps) {
  const client = useClient();
  const { modal, message } = App.useApp();
  if (!documents.length)
    return (
      <EmptyState icon={<BookOutlined aria-hidden />} title="No documents yet">
        Upload a file and agents can cite it.
      </EmptyState>
    );
  const remove = (document: DocumentShape) =>
    modal.confirm({
      title: `Remove ${toSafeLine(document.name, 100)}?`,
      content: document.uploaded
        ? "Agents can no longer cite it, and the uploaded file is deleted."
        : "Agents can no longer cite it. The file itself stays where it is.",
      okText: "Remove",
      okButtonProps: { danger: true },
      onOk: () =>
        client
          .request("knowledge.remove", { source: document.id })
          .then(onRemoved, (error: Error) => void message.error(error.message)),
    });
  return (
    <ul className="item-list" aria-label="Documents">
      {documents.map((document) => (
        <li key={document.id}>
          <div className="item-main">
            <span>
              <strong className="item-name">{toSafeLine(document.name, 200)}</strong> <Tag>{document.category}</Tag>
            </span>
            <span className="muted">
              {document.passages === 1 ? "1 passage" : `${document.passages} passages`} · {formatBytes(document.bytes)}{" "}
              · {formatDateTime(document.addedAt)}
              {document.addedBy && ` · added by ${document.addedBy}`}
            </span>
            {document.complete === false && (
              <Alert type="warning" showIcon title="Reading was interrupted. Upload the file again." />
            )}
          </div>
          {admin && (
            <Button onClick={() => remove(document)} aria-label={`Remove ${document.name}`}>
              Remove
            </Button>
          )}
        </li>
      ))}
    </ul>
  );
}
