// Settings › MCP servers: add, inspect, approve, sign in and remove. Nothing starts before its command was shown.

import { ApiOutlined } from "@ant-design/icons";
import { Alert, App, Button, Checkbox, Collapse, Drawer, Input, Segmented, Space, Tag } from "antd";
import { useCallback, useState } from "react";
import { EditConflictAlert } from "../components/edit-conflict";
import { FormField } from "../components/form-field";
import { type Editable, useEditForm } from "../state/editing";
import { toSentence } from "../state/format";
import { useClient, useQuery, useResourceReload } from "../state/hooks";
import type { McpCatalogEntry, McpEntryShape, McpInspection, McpServerShape, McpToolShape } from "../wire";
import { EmptyState, QueryResult } from "./view";
import "../styles/admin.css";

type Status = NonNullable<McpServerShape["status"]>;

const STATUSES: Record<Status, { name: string; color: string }> = {
  "not-approved": { name: "Not approved", color: "warning" },
  changed: { name: "Changed, needs review", color: "warning" },
  disabled: { name: "Disabled", color: "default" },
  "signing-in": { name: "Waiting for sign-in…", color: "processing" },
  "needs-sign-in": { name: "Needs sign-in", color: "warning" },
  unreachable: { name: "Unreachable", color: "error" },
  running: { name: "Running", color: "success" },
  ready: { name: "Ready", color: "success" },
};

export default function McpSettings() {
  const servers = useQuery("mcp.servers", {});
  useResourceReload("mcp", servers.reload);
  const [adding, setAdding] = useState(false);
  const [editing, setEditing] = useState<McpServerShape>();
  const [inspecting, setInspecting] = useState("");
  const finish = (name: string) => {
    setAdding(false);
    setEditing(undefined);
    servers.reload();
    setInspecting(name);
  };
  return (
    <>
      <div className="row">
        <p className="muted grow">
          Servers add tools to your agents. A server starts only after you have seen its command.
        </p>
        <Button type="primary" onClick={() => setAdding(true)}>
          Add server
        </Button>
      </div>
      <QueryResult query={servers}>
        {({ servers: found = [], trouble }) => (
          <>
            {trouble && <Alert type="error" showIcon title={toSentence(trouble)} />}
            {found.length ? (
              <ul className="item-list" aria-label="MCP servers">
                {found.map((server) => (
                  <ServerItem
                    key={server.name}
                    server={server}
                    onInspect={() => setInspecting(server.name)}
                    onEdit={() => setEditing(server)}
                    onChange={servers.reload}
                  />
                ))}
              </ul>
            ) : (
              !trouble && (
                <EmptyState icon={<ApiOutlined aria-hidden />} title="No MCP servers yet">
                  Add a server to give your agents more tools.
                </EmptyState>
              )
            )}
          </>
        )}
      </QueryResult>
      {adding && <AddDrawer onClose={() => setAdding(false)} onSaved={finish} />}
      {editing && (
        <Drawer open size={560} title={`Edit ${editing.name}`} onClose={() => setEditing(undefined)}>
          <ServerForm
            initial={{ ...editing, value: toForm(editing.name, editing.entry ?? {}) }}
            isNew={false}
            onSaved={finish}
          />
        </Drawer>
      )}
      {inspecting && (
        <InspectDrawer
          name={inspecting}
          onClose={() => {
            setInspecting("");
            servers.reload();
          }}
        />
      )}
    </>
  );
}

interface ItemProps {
  server: McpServerShape;
  onInspect: () => void;
  onEdit: () => void;
  onChange: () => void;
}

function ServerItem({ server, onInspect, onEdit, onChange }: ItemProps) {
  const client = useClient();
  const { modal, message } = App.useApp();
  const { name, entry, tools = [], agents = [], trouble, changes = [] } = server;
  const status = server.status ?? "not-approved";
  const fail = (error: Error) => void message.error(error.message);
  const remove = async () => {
    const expectedVersion = server.version ?? null;
    const { warnings = [] } = await client.request("mcp.remove", { name, expectedVersion, dryRun: true });
    modal.confirm({
      title: `Remove ${name}?`,
      content: [...warnings.map((each) => `${toSentence(each)}.`), "Its approval and its secrets are deleted."].join(
        " ",
      ),
      okText: "Remove",
      okButtonProps: { danger: true },
      onOk: () => client.request("mcp.remove", { name, expectedVersion }).then(onChange, fail),
    });
  };
  const signIn = () => client.request("mcp.login", { name }).then(onChange, fail);
  const signOut = () => client.request("mcp.logout", { name }).then(onChange, fail);
  const needsReview = status === "not-approved" || status === "changed";
  return (
    <li>
      <div className="item-main">
        <span>
          <strong className="item-name">{name}</strong>{" "}
          <Tag color={STATUSES[status].color}>{STATUSES[status].name}</Tag>
        </span>
        <code>{entry?.url || [entry?.command, ...(entry?.args ?? [])].join(" ")}</code>
        <span className="muted">
          {tools.length === 1 ? "1 tool" : `${tools.length} tools`}
          {agents.length > 0 && ` · used by ${agents.join(", ")}`}
        </span>
        {changes.length > 0 && <span className="muted">Changed: {changes.join(", ")}</span>}
        {trouble && !isPlainLogin(trouble) && <span className="error">{toSentence(withoutCommand(trouble))}</span>}
        {server.loginUrl && (
          <a href={server.loginUrl} target="_blank" rel="noreferrer">
            Open the sign-in page
          </a>
        )}
      </div>
      <Space wrap>
        <Button type={needsReview ? "primary" : "default"} aria-label={`Review ${name}`} onClick={onInspect}>
          Review
        </Button>
        {status === "needs-sign-in" && <Button onClick={() => void signIn()}>Sign in</Button>}
        {(status === "signing-in" || server.hasLogin) && (
          <Button onClick={() => void signOut()}>{status === "signing-in" ? "Cancel" : "Sign out"}</Button>
        )}
        <Button aria-label={`Edit ${name}`} onClick={onEdit}>
          Edit
        </Button>
        <Button aria-label={`Remove ${name}`} onClick={() => void remove().catch(fail)}>
          Remove
        </Button>
      </Space>
    </li>
  );
}

function AddDrawer({ onClose, onSaved }: { onClose: () => void; onSaved: (name: string) => void }) {
  const catalog = useQuery("mcp.catalog", {});
  const [chosen, setChosen] = useState<McpCatalogEntry | "own">();
  return (
    <Drawer open size={560} title="Add an MCP server" onClose={onClose}>
      {chosen ? (
        <ServerForm
          initial={{ value: chosen === "own" ? toForm("", {}) : toForm(chosen.name, chosen.entry) }}
          isNew
          onSaved={onSaved}
        />
      ) : (
        <QueryResult query={catalog}>
          {({ servers }) => (
            <div className="stack">
              <Button onClick={() => setChosen("own")}>Custom command or URL</Button>
              <ul className="item-list" aria-label="Well-known servers">
                {servers.map((each) => (
                  <li key={each.name}>
                    <div className="item-main">
                      <strong>{each.title}</strong>
                      <span className="muted">{each.entry.description}</span>
                    </div>
                    <Button aria-label={`Add ${each.title}`} onClick={() => setChosen(each)}>
                      Add
                    </Button>
                  </li>
                ))}
              </ul>
            </div>
          )}
        </QueryResult>
      )}
    </Drawer>
  );
}

interface FormValue {
  name: string;
  kind: "command" | "url";
  command: string;
  args: string;
  url: string;
  env: string;
  headers: string;
  clientId: string;
  clientSecret: string;
  callbackPort: string;
  network: boolean;
  readable: string;
  writable: string;
  confirm: boolean;
  description: string;
  /** Not shown in the form; saving keeps it. */
  disabled: boolean;
}

const LABELS: Partial<Record<keyof FormValue, string>> = {
  command: "Command",
  args: "Arguments",
  url: "URL",
  env: "Environment variables",
  headers: "Headers",
  clientId: "OAuth client ID",
  clientSecret: "OAuth client secret",
  callbackPort: "Callback port",
  network: "Network",
  readable: "Folders it may read",
  writable: "Folder it may change",
  confirm: "Ask before each call",
  description: "Description",
  disabled: "Disabled",
};

const lines = (text: string): string[] =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** An argument as one line of text, in the quotes of JSON if it would be read as something else without them. */
const quoted = (argument: string): string =>
  argument && argument === argument.trim() && !/[\r\n]/.test(argument) && unquoted(argument) === argument
    ? argument
    : JSON.stringify(argument);
const unquoted = (line: string): string => {
  if (!line.startsWith('"')) return line;
  try {
    return String(JSON.parse(line));
  } catch {
    return line;
  }
};
const pairs = (text: string): Record<string, string> =>
  Object.fromEntries(
    lines(text).map((line) => {
      const [name = "", ...rest] = line.split("=");
      return [name.trim(), rest.join("=").trim()];
    }),
  );
const unpair = (values: Record<string, string> = {}): string =>
  Object.entries(values)
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");

export function toForm(name: string, entry: McpEntryShape): FormValue {
  const folders = Object.entries(entry.folders ?? {});
  return {
    name,
    kind: entry.url ? "url" : "command",
    command: entry.command ?? "",
    args: (entry.args ?? []).map(quoted).join("\n"),
    url: entry.url ?? "",
    env: unpair(entry.env),
    headers: unpair(entry.headers),
    clientId: entry.oauth?.clientId ?? "",
    clientSecret: entry.oauth?.clientSecret ?? "",
    callbackPort: entry.oauth?.callbackPort ? String(entry.oauth.callbackPort) : "",
    network: entry.network ?? false,
    readable: folders.flatMap(([path, access]) => (access === "read" ? [path] : [])).join("\n"),
    writable: folders.find(([, access]) => access === "write")?.[0] ?? "",
    confirm: entry.confirm ?? true,
    description: entry.description ?? "",
    disabled: entry.disabled ?? false,
  };
}

export function toEntry(value: FormValue): McpEntryShape {
  const { description, confirm, disabled } = value;
  const common = { description, confirm, disabled };
  if (value.kind === "url") {
    const { clientSecret, callbackPort } = value;
    const clientId = value.clientId.trim();
    const oauth = clientId ? { clientId, clientSecret, callbackPort: Number(callbackPort) || 0 } : undefined;
    return { ...common, url: value.url.trim(), headers: pairs(value.headers), ...(oauth && { oauth }) };
  }
  const folders: Record<string, "read" | "write"> = Object.fromEntries(
    lines(value.readable).map((path) => [path, "read"]),
  );
  if (value.writable.trim()) folders[value.writable.trim()] = "write";
  const command = value.command.trim();
  const args = lines(value.args).map(unquoted);
  return { ...common, command, args, env: pairs(value.env), network: value.network, folders };
}

type TextKey = "name" | "command" | "url" | "clientId" | "clientSecret" | "callbackPort" | "writable" | "description";

interface FormProps {
  initial: Editable<FormValue> | { value: FormValue };
  isNew: boolean;
  onSaved: (name: string) => void;
}

function ServerForm({ initial, isNew, onSaved }: FormProps) {
  const client = useClient();
  const form = useEditForm<FormValue>({
    kind: "mcp",
    id: initial.value.name,
    initial: "version" in initial ? initial : { ...initial, version: null, changedBy: "", changedAt: null },
    write: async (value, expectedVersion) => {
      const { server } = await client.request("mcp.put", { name: value.name, entry: toEntry(value), expectedVersion });
      return { ...server, value: toForm(value.name, server?.entry ?? {}) };
    },
    load: async () => {
      const { servers = [] } = await client.request("mcp.servers", {});
      const found = servers.find((each) => each.name === initial.value.name);
      return found ? { ...found, value: toForm(found.name, found.entry ?? {}) } : null;
    },
    read: (value) => toForm(initial.value.name, value as McpEntryShape),
  });
  const { value, change } = form;
  const save = async () => {
    const saved = await form.save();
    if (saved) onSaved(value.name);
  };
  const complete = value.name && (value.kind === "url" ? value.url.trim() : value.command.trim());
  const text = (key: TextKey, label: string, hint?: string) => (
    <FormField label={label} hint={hint}>
      {(control) => (
        <Input
          {...control}
          type={key === "clientSecret" ? "password" : key === "callbackPort" ? "number" : "text"}
          value={value[key]}
          disabled={key === "name" && !isNew}
          onChange={(event) => change({ [key]: event.target.value })}
        />
      )}
    </FormField>
  );
  const area = (key: "args" | "env" | "headers" | "readable", label: string, hint: string) => (
    <FormField label={label} hint={hint}>
      {(control) => (
        <Input.TextArea
          {...control}
          autoSize={{ minRows: 1 }}
          value={value[key]}
          onChange={(event) => change({ [key]: event.target.value })}
        />
      )}
    </FormField>
  );
  const secret = "NAME=value, one per line. Values are stored in a file only you can read and won't be shown again.";
  return (
    <div className="stack">
      <EditConflictAlert form={form} labels={LABELS} onSaved={() => onSaved(value.name)} />
      {form.error && <Alert type="error" showIcon title={form.error} />}
      {text("name", "Name")}
      <Segmented<FormValue["kind"]>
        value={value.kind}
        options={[
          { value: "command", label: "Command" },
          { value: "url", label: "URL" },
        ]}
        onChange={(kind) => change({ kind })}
      />
      {value.kind === "command" ? (
        <>
          {text("command", "Command")}
          {area("args", "Arguments", 'One per line. Write "" for an empty one, and "a\\nb" for two lines.')}
          {area("env", "Environment variables", secret)}
          <Checkbox checked={value.network} onChange={(event) => change({ network: event.target.checked })}>
            May use the network
          </Checkbox>
          {area("readable", "Folders it may read", "One per line.")}
          {text("writable", "Folder it may change")}
        </>
      ) : (
        <>
          {text("url", "URL")}
          {area("headers", "Headers", secret)}
          {text("clientId", "OAuth client ID", "Only if the server needs a client that you registered.")}
          {value.clientId.trim() && (
            <>
              {text("clientSecret", "OAuth client secret", "Stored in a file only you can read and not shown again.")}
              {text("callbackPort", "Callback port", "Of the redirect URI http://127.0.0.1:PORT/callback.")}
            </>
          )}
        </>
      )}
      <Checkbox checked={value.confirm} onChange={(event) => change({ confirm: event.target.checked })}>
        Ask before each call
      </Checkbox>
      <p className="muted">Writes mcp.json in the workspace. Nothing is started yet.</p>
      <Button type="primary" loading={form.busy} disabled={!complete} onClick={() => void save()}>
        {isNew ? "Continue" : "Save"}
      </Button>
    </div>
  );
}

function InspectDrawer({ name, onClose }: { name: string; onClose: () => void }) {
  const client = useClient();
  const { message } = App.useApp();
  const shown = useQuery("mcp.inspect", { name });
  const [found, setFound] = useState<McpInspection>();
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const perform = async (work: () => Promise<void>) => {
    setBusy(true);
    setError("");
    try {
      await work();
    } catch (failure) {
      setError((failure as Error).message);
    } finally {
      setBusy(false);
    }
  };
  const start = (program: string) =>
    perform(async () => {
      const inspection = await client.request("mcp.inspect", { name, program });
      setFound(inspection);
      const usual = (inspection.tools ?? []).filter((tool) => tool.change === "same" && !tool.problem);
      setChosen(new Set(usual.map((tool) => tool.name)));
    });
  const approve = (inspection: McpInspection) =>
    perform(async () => {
      const tools = (inspection.tools ?? []).filter((tool) => chosen.has(tool.name));
      const wanted = tools.map((tool) => ({ name: tool.name, digest: tool.digest }));
      await client.request("mcp.approve", { name, program: inspection.program, tools: wanted });
      message.success(`${name} is running. Agents can use it now.`);
      onClose();
    });
  const toggle = (tool: string, on: boolean) =>
    setChosen((before) => new Set(on ? [...before, tool] : [...before].filter((each) => each !== tool)));
  return (
    <Drawer open size={640} title={`Review ${name}`} onClose={onClose}>
      <div className="stack">
        <QueryResult query={shown}>
          {(description) => (
            <>
              <p>This will {/^https?:/.test(description.command) ? "connect to" : "run"}:</p>
              <pre className="command">{description.command}</pre>
              {description.details.length > 0 && (
                <ul className="muted details">
                  {description.details.map((line) => (
                    <li key={line}>{line}</li>
                  ))}
                </ul>
              )}
              {error && !needsLogin(error) && <Alert type="error" showIcon role="alert" title={toSentence(error)} />}
              {needsLogin(error) && <SignIn name={name} onSignedIn={() => void start(description.program)} />}
              {!found && !needsLogin(error) && (
                <Button type="primary" loading={busy} onClick={() => void start(description.program)}>
                  Start and inspect
                </Button>
              )}
            </>
          )}
        </QueryResult>
        {found?.tools && (
          <>
            <p className="muted">
              Text from this server is not verified. Approve only tools that you want agents to use.
            </p>
            {(found.hidden?.length ?? 0) > 0 && (
              <Alert type="warning" showIcon title={`Invisible characters in: ${found.hidden?.join(", ")}`} />
            )}
            {(found.removed?.length ?? 0) > 0 && (
              <Alert type="info" showIcon title={`No longer offered: ${found.removed?.join(", ")}`} />
            )}
            <Checkbox
              checked={found.tools.every((tool) => tool.problem || chosen.has(tool.name))}
              onChange={({ target }) =>
                setChosen(
                  new Set(target.checked ? found.tools?.filter((each) => !each.problem).map((each) => each.name) : []),
                )
              }
            >
              All tools
            </Checkbox>
            <ul className="item-list" aria-label="Tools">
              {found.tools.map((tool) => (
                <ToolItem
                  key={tool.name}
                  tool={tool}
                  checked={chosen.has(tool.name)}
                  onToggle={(on) => toggle(tool.name, on)}
                />
              ))}
            </ul>
            <Button type="primary" loading={busy} disabled={!chosen.size} onClick={() => void approve(found)}>
              {chosen.size === 1 ? "Approve 1 tool" : `Approve ${chosen.size} tools`}
            </Button>
          </>
        )}
      </div>
    </Drawer>
  );
}

/** Whether a message of the gateway means that a person has to sign in to a server. */
const needsLogin = (text: string): boolean => text.includes("requires a login");

/** Whether that is all it says; the status and the button “Sign in” say the same. */
const isPlainLogin = (text: string): boolean => text.includes("requires a login;");

/** A message without the command for a terminal at its end. */
const withoutCommand = (text: string): string => text.replace(/; run: .*$/, "");

/** Sign in to a server that requires it; the gateway tells when the person is done. */
function SignIn({ name, onSignedIn }: { name: string; onSignedIn: () => void }) {
  const client = useClient();
  const [url, setUrl] = useState("");
  const [error, setError] = useState("");
  const fail = useCallback((failure: Error) => {
    setUrl("");
    setError(failure.message);
  }, []);
  const check = useCallback(() => {
    client.request("mcp.servers", {}).then(({ servers = [] }) => {
      const server = servers.find((each) => each.name === name);
      if (server?.status === "signing-in") setUrl(server.loginUrl ?? "");
      else if (server?.hasLogin && server.status !== "needs-sign-in") onSignedIn();
      else fail(new Error(server?.trouble || "The sign-in was not completed."));
    }, fail);
  }, [client, name, onSignedIn, fail]);
  useResourceReload("mcp-login", check);
  const begin = () => {
    setError("");
    client.request("mcp.login", { name }).then((login) => (login.url ? setUrl(login.url) : onSignedIn()), fail);
  };
  const cancel = () => {
    setUrl("");
    client.request("mcp.logout", { name }).catch(fail);
  };
  return (
    <div className="stack">
      {error && <Alert type="error" showIcon role="alert" title={toSentence(error)} />}
      {url ? (
        <>
          <p role="status">Waiting for sign-in…</p>
          <div className="row">
            <Button type="primary" href={url} target="_blank" rel="noreferrer">
              Open the sign-in page
            </Button>
            <Button onClick={cancel}>Cancel</Button>
          </div>
        </>
      ) : (
        <>
          <p>This server needs you to sign in before it shows its tools.</p>
          <div className="row">
            <Button type="primary" onClick={begin}>
              Sign in
            </Button>
          </div>
        </>
      )}
    </div>
  );
}

interface ToolProps {
  tool: McpToolShape;
  checked: boolean;
  onToggle: (on: boolean) => void;
}

function ToolItem({ tool, checked, onToggle }: ToolProps) {
  return (
    <li>
      <div className="item-main">
        <Checkbox
          checked={checked}
          disabled={Boolean(tool.problem)}
          onChange={(event) => onToggle(event.target.checked)}
        >
          <strong>{tool.name}</strong>
        </Checkbox>
        {tool.change !== "same" && (
          <span>
            <Tag color={tool.change === "changed" ? "warning" : "default"}>
              {tool.change === "changed" ? "Changed" : "New"}
            </Tag>
          </span>
        )}
        <p className="tool-description">{tool.description}</p>
        {tool.problem && <span className="error">{toSentence(tool.problem)}</span>}
        {tool.diff && <pre className="command">{tool.diff}</pre>}
        <Collapse
          ghost
          size="small"
          items={[{ key: "schema", label: "Parameters", children: <pre className="command">{tool.schema}</pre> }]}
        />
      </div>
    </li>
  );
}
