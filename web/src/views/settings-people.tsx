// Settings › People: users, access tokens, and how much of the plan is used.

import { Alert, App, Button, Checkbox, Input, Modal, Progress, Select, Space, Tag } from "antd";
import { useState } from "react";
import { CopyButton } from "../components/buttons";
import { FormField } from "../components/form-field";
import { RequestError } from "../net/connection";
import { formatBytes, formatCount, formatDateTime } from "../state/format";
import { useClient, useQuery, useResourceReload } from "../state/hooks";
import type { TenantResult, TokenShape, UserShape } from "../wire";
import { QueryResult } from "./view";
import "../styles/admin.css";

type Scope = TokenShape["scopes"][number];

/** What a token with a scope can do, in the order of the form. */
const SCOPES: { scope: Scope; text: string }[] = [
  { scope: "read", text: "Can read chats" },
  { scope: "write", text: "Can chat" },
  { scope: "approve", text: "Can approve actions" },
  { scope: "admin", text: "Can change settings" },
];
const STATUSES: Record<UserShape["status"], string> = { active: "Active", invited: "Invited", suspended: "Suspended" };

export default function PeopleSettings() {
  return (
    <>
      <Users />
      <Tokens />
      <Plan />
    </>
  );
}

function Users() {
  const client = useClient();
  const { message, modal } = App.useApp();
  const users = useQuery("users.list", {});
  useResourceReload("user", users.reload);
  const [name, setName] = useState("");
  const [inviting, setInviting] = useState<Invitee>();
  const save = async (user: Pick<UserShape, "name" | "role" | "status">, expectedVersion: string | null) => {
    try {
      await client.request("users.put", { ...user, expectedVersion });
      setName("");
    } catch (error) {
      const current = error instanceof RequestError ? error.current : undefined;
      void message.error(
        current?.changedBy ? `${current.changedBy} changed this user in the meantime.` : (error as Error).message,
      );
    }
    users.reload();
  };
  const remove = async (user: UserShape) => {
    const { warnings = [] } = await client.request("users.remove", { name: user.name, dryRun: true });
    modal.confirm({
      title: `Remove ${user.name}?`,
      content: ["Their stored chats are kept.", ...warnings.map(toSentence)].join(" "),
      okText: "Remove",
      okButtonProps: { danger: true },
      onOk: () =>
        client
          .request("users.remove", { name: user.name })
          .then(users.reload, (error: Error) => void message.error(error.message)),
    });
  };
  const changeStatus = async (user: UserShape, status: UserShape["status"]) => {
    const change = { ...pick(user), status };
    const { warnings = [] } = await client.request("users.put", { ...change, dryRun: true });
    if (!warnings.length) return save(change, user.version ?? null);
    modal.confirm({
      title: `${status === "suspended" ? "Suspend" : "Change"} ${user.name}?`,
      content: warnings.map(toSentence).join(" "),
      okText: status === "suspended" ? "Suspend" : "Change",
      onOk: () => save(change, user.version ?? null),
    });
  };
  const fail = (error: Error) => void message.error(error.message);
  return (
    <>
      <h2 className="section-title">Users</h2>
      <QueryResult query={users}>
        {(result) => (
          <ul className="item-list" aria-label="Users">
            {result.users.map((user) => (
              <li key={user.name}>
                <div className="item-main">
                  <strong className="item-name">{user.name}</strong>
                  <span className="muted">
                    {user.role}
                    {user.lastActive ? ` · last active ${formatDateTime(user.lastActive)}` : " · not active yet"}
                    {user.invitedUntil && ` · invited until ${formatDateTime(user.invitedUntil)}`}
                    {user.changedBy && ` · changed by ${user.changedBy}`}
                  </span>
                </div>
                {user.role !== "owner" && (
                  <Space wrap>
                    {user.status === "invited" && (
                      <Button aria-label={`Invite again: ${user.name}`} onClick={() => setInviting(user)}>
                        Invite again
                      </Button>
                    )}
                    <Select
                      aria-label={`Status of ${user.name}`}
                      value={user.status}
                      onChange={(status) => void changeStatus(user, status).catch(fail)}
                      options={Object.entries(STATUSES).map(([value, label]) => ({ value, label }))}
                      popupMatchSelectWidth={false}
                    />
                    <Button aria-label={`Remove ${user.name}`} onClick={() => void remove(user).catch(fail)}>
                      Remove
                    </Button>
                  </Space>
                )}
              </li>
            ))}
          </ul>
        )}
      </QueryResult>
      <Space.Compact>
        <Input
          aria-label="Name of the new user"
          placeholder="Name"
          value={name}
          onChange={(event) => setName(event.target.value)}
        />
        <Button
          disabled={!name.trim()}
          onClick={() => void save({ name: name.trim(), role: "member", status: "active" }, null)}
        >
          Add user
        </Button>
        <Button type="primary" onClick={() => setInviting({ name: name.trim() })}>
          Invite
        </Button>
      </Space.Compact>
      {inviting !== undefined && (
        <Invite
          invitee={inviting}
          onClose={() => {
            setInviting(undefined);
            setName("");
            users.reload();
          }}
        />
      )}
    </>
  );
}

const toSentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

/** A new user, or one with an open invitation. */
type Invitee = Pick<UserShape, "name" | "invitedUntil" | "invitedScopes">;

/** Make a link that signs a new user in once. An open invitation keeps what is not changed in the form. */
function Invite({ invitee, onClose }: { invitee: Invitee; onClose: () => void }) {
  const client = useClient();
  const [name, setName] = useState(invitee.name);
  const [scopes, setScopes] = useState<Scope[]>(invitee.invitedScopes ?? ["read", "write"]);
  const periods = invitee.invitedUntil ? [AS_BEFORE, ...DAYS] : DAYS;
  const [days, setDays] = useState(invitee.invitedUntil ? AS_BEFORE.value : 7);
  const [link, setLink] = useState("");
  const [until, setUntil] = useState("");
  const [error, setError] = useState("");
  const invite = async () => {
    try {
      const made = await client.request("users.invite", { name: name.trim(), scopes, ...(days && { days }) });
      setUntil(formatDateTime(made.user.invitedUntil ?? 0));
      setLink(`${location.origin}${made.path}`);
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  return (
    <Modal
      open
      title={link ? `Invitation for ${name}` : "Invite a person"}
      onCancel={onClose}
      onOk={() => (link ? onClose() : void invite())}
      okText={link ? "Done" : "Create link"}
      okButtonProps={{ disabled: !link && (!name.trim() || !scopes.length) }}
      {...(link ? { cancelButtonProps: { style: { display: "none" } } } : {})}
    >
      {link ? (
        <div className="stack">
          <Alert
            type="warning"
            showIcon
            title={`Copy this link now. You won’t see it again. It works once, until ${until}.`}
          />
          <div className="row">
            <code className="secret">{link}</code>
            <CopyButton text={link} label="Copy the link" />
          </div>
        </div>
      ) : (
        <div className="stack">
          <FormField label="Name" hint="Lowercase letters, digits, - or _." error={error || undefined}>
            {(control) => (
              <Input
                {...control}
                value={name}
                autoFocus
                onChange={(event) => {
                  setName(event.target.value);
                  setError("");
                }}
              />
            )}
          </FormField>
          <ScopeBoxes scopes={scopes} onChange={setScopes} />
          <FormField label="Valid for">
            {({ id }) => <Select id={id} value={days} onChange={setDays} options={periods} />}
          </FormField>
        </div>
      )}
    </Modal>
  );
}

/** Without a number of days, an open invitation is valid as long as before. */
const AS_BEFORE = { value: 0, label: "As long as before" };
const DAYS = [
  { value: 1, label: "1 day" },
  { value: 7, label: "7 days" },
  { value: 30, label: "30 days" },
];

function ScopeBoxes({ scopes, onChange }: { scopes: Scope[]; onChange: (scopes: Scope[]) => void }) {
  return SCOPES.map(({ scope, text }) => (
    <Checkbox
      key={scope}
      checked={scopes.includes(scope)}
      onChange={({ target }) => onChange(target.checked ? [...scopes, scope] : scopes.filter((each) => each !== scope))}
    >
      {text}
    </Checkbox>
  ));
}

const pick = ({ name, role, status }: UserShape) => ({ name, role, status });

function Tokens() {
  const client = useClient();
  const { message, modal } = App.useApp();
  const tokens = useQuery("tokens.list", {});
  useResourceReload("token", tokens.reload);
  const [creating, setCreating] = useState(false);
  const revoke = (token: TokenShape) =>
    modal.confirm({
      title: `Revoke ${token.name}?`,
      content: "Anything using it stops working now.",
      okText: "Revoke",
      okButtonProps: { danger: true },
      onOk: () =>
        client
          .request("tokens.revoke", { name: token.name })
          .then(tokens.reload, (error: Error) => void message.error(error.message)),
    });
  return (
    <>
      <div className="row">
        <h2 className="section-title grow">Tokens</h2>
        <Button onClick={() => setCreating(true)}>Create token</Button>
      </div>
      <QueryResult query={tokens}>
        {(result) => (
          <ul className="item-list" aria-label="Tokens">
            {result.tokens.map((token) => (
              <li key={token.name}>
                <div className="item-main">
                  <span>
                    <strong className="item-name">{token.main ? "Main token" : token.name}</strong>{" "}
                    {token.user !== token.name && <Tag>{token.user}</Tag>}
                  </span>
                  <span className="muted">
                    {SCOPES.filter(({ scope }) => token.scopes.includes(scope))
                      .map(({ text }) => text)
                      .join(" · ")}{" "}
                    · {token.sessions === "all" ? "All chats" : "Own chats only"}
                  </span>
                </div>
                {!token.main && (
                  <Button aria-label={`Revoke ${token.name}`} onClick={() => revoke(token)}>
                    Revoke
                  </Button>
                )}
              </li>
            ))}
          </ul>
        )}
      </QueryResult>
      {creating && (
        <CreateToken
          onClose={() => {
            setCreating(false);
            tokens.reload();
          }}
        />
      )}
    </>
  );
}

function CreateToken({ onClose }: { onClose: () => void }) {
  const client = useClient();
  const [name, setName] = useState("");
  const [user, setUser] = useState("");
  const [scopes, setScopes] = useState<Scope[]>(["read", "write"]);
  const [all, setAll] = useState(false);
  const [secret, setSecret] = useState("");
  const [error, setError] = useState("");
  const create = async () => {
    try {
      const sessions = all ? "all" : "own";
      const made = await client.request("tokens.create", { name: name.trim(), user: user.trim(), scopes, sessions });
      setSecret(made.secret);
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  return (
    <Modal
      open
      title={secret ? `Token ${name}` : "Create a token"}
      onCancel={onClose}
      onOk={() => (secret ? onClose() : void create())}
      okText={secret ? "Done" : "Create"}
      okButtonProps={{ disabled: !secret && (!name.trim() || !scopes.length) }}
      {...(secret ? { cancelButtonProps: { style: { display: "none" } } } : {})}
    >
      {secret ? (
        <div className="stack">
          <Alert type="warning" showIcon title="Copy this token now. You won't see it again." />
          <div className="row">
            <code className="secret">{secret}</code>
            <CopyButton text={secret} label="Copy the token" />
          </div>
        </div>
      ) : (
        <div className="stack">
          <FormField label="Name" hint="Lowercase letters, digits, - or _." error={error || undefined}>
            {(control) => (
              <Input
                {...control}
                value={name}
                onChange={(event) => {
                  setName(event.target.value);
                  setError("");
                }}
              />
            )}
          </FormField>
          <FormField label="User" hint="Leave empty if the user has the same name.">
            {(control) => <Input {...control} value={user} onChange={(event) => setUser(event.target.value)} />}
          </FormField>
          <ScopeBoxes scopes={scopes} onChange={setScopes} />
          <Checkbox checked={all} onChange={(event) => setAll(event.target.checked)}>
            Can see the chats of all users
          </Checkbox>
        </div>
      )}
    </Modal>
  );
}

const LIMITS: { key: "tokens" | "storage" | "agents" | "seats"; name: string; format: (value: number) => string }[] = [
  { key: "tokens", name: "Tokens this month", format: formatCount },
  { key: "storage", name: "Storage", format: formatBytes },
  { key: "agents", name: "Agents", format: String },
  { key: "seats", name: "Users", format: String },
];

function Plan() {
  const client = useClient();
  const { message } = App.useApp();
  const tenant = useQuery("tenants.get", {});
  const plans = useQuery("plans.list", {});
  useResourceReload("tenant", tenant.reload);
  useResourceReload("plan", plans.reload);
  const { modal } = App.useApp();
  const fail = (error: Error) => void message.error(error.message);
  const change = async (plan: string) => {
    const save = () => client.request("tenants.update", { plan }).then(tenant.reload, fail);
    const { warnings = [] } = await client.request("tenants.update", { plan, dryRun: true });
    if (!warnings.length) return save();
    modal.confirm({
      title: `Switch to the plan ${plan}?`,
      content: `Current usage exceeds this plan. ${warnings.map(toSentence).join(" ")}`,
      okText: "Switch",
      onOk: save,
    });
  };
  return (
    <>
      <h2 className="section-title">Plan</h2>
      <QueryResult query={tenant}>
        {(result) => (
          <div className="stack">
            <div className="row">
              <span>Current plan</span>
              <Select
                aria-label="Current plan"
                value={result.plan.name}
                onChange={(plan) => void change(plan).catch(fail)}
                options={(plans.data?.plans ?? [result.plan]).map(({ name }) => ({ value: name, label: name }))}
                popupMatchSelectWidth={false}
              />
              <NewPlan onSaved={plans.reload} />
            </div>
            {LIMITS.map((limit) => (
              <LimitBar key={limit.key} tenant={result} limit={limit} />
            ))}
          </div>
        )}
      </QueryResult>
    </>
  );
}

function LimitBar({ tenant, limit: { key, name, format } }: { tenant: TenantResult; limit: (typeof LIMITS)[number] }) {
  const used = tenant[key];
  const limit = tenant.plan[key];
  const percent = limit ? Math.min(100, Math.round((used / limit) * 100)) : 0;
  return (
    <div>
      <div className="row">
        <span className="grow">{name}</span>
        <span className="muted">
          {typeof limit === "number" ? `${format(used)} of ${format(limit)}` : format(used)}
        </span>
      </div>
      {typeof limit === "number" && (
        <Progress
          percent={percent}
          showInfo={false}
          size="small"
          status={percent >= 100 ? "exception" : "normal"}
          aria-label={`${name}: ${percent} % used`}
        />
      )}
    </div>
  );
}

function NewPlan({ onSaved }: { onSaved: () => void }) {
  const client = useClient();
  const [open, setOpen] = useState(false);
  const [values, setValues] = useState<Record<string, string>>({});
  const [error, setError] = useState("");
  const save = async () => {
    const numbers = Object.fromEntries(
      LIMITS.flatMap(({ key }) => (values[key]?.trim() ? [[key, Number(values[key])]] : [])),
    );
    try {
      await client.request("plans.put", { name: (values.name ?? "").trim(), ...numbers, expectedVersion: null });
      setOpen(false);
      setValues({});
      onSaved();
    } catch (failure) {
      setError((failure as Error).message);
    }
  };
  return (
    <>
      <Button onClick={() => setOpen(true)}>New plan</Button>
      <Modal
        open={open}
        title="New plan"
        okText="Create"
        onOk={() => void save()}
        onCancel={() => setOpen(false)}
        okButtonProps={{ disabled: !values.name?.trim() }}
      >
        <div className="stack">
          {error && <Alert type="error" showIcon title={error} />}
          {[{ key: "name", name: "Name" }, ...LIMITS].map(({ key, name }) => (
            <FormField
              key={key}
              label={key === "storage" ? "Storage in bytes" : name}
              hint={key === "name" ? undefined : "Empty means no limit."}
            >
              {(control) => (
                <Input
                  {...control}
                  inputMode={key === "name" ? "text" : "numeric"}
                  value={values[key] ?? ""}
                  onChange={(event) => setValues((before) => ({ ...before, [key]: event.target.value }))}
                />
              )}
            </FormField>
          ))}
        </div>
      </Modal>
    </>
  );
}
