// Form of an agent. It writes AGENTS.md, shows the diff, and can try the agent before it is saved.

import { Alert, App, AutoComplete, Button, Checkbox, Input, Segmented, Select, Space, Spin, Tag, Tooltip } from "antd";
import { useEffect, useMemo, useState } from "react";
import { DiffTable } from "../chat/diff";
import { EditConflictAlert, useLeaveGuard } from "../components/edit-conflict";
import { FormField } from "../components/form-field";
import { RouteLink } from "../components/link";
import { Avatar } from "../components/speaker";
import { navigate } from "../layout/router";
import {
  AGENT_LABELS,
  type AgentValues,
  ALL_TOOLS,
  checkAgentId,
  EMPTY_AGENT,
  groupTools,
  readDraft,
  toAgentId,
} from "../state/agent-form";
import { parseDiff } from "../state/diff";
import { type Editable, type EditForm, useEditForm } from "../state/editing";
import { toSentence } from "../state/format";
import { useAppState, useClient, useMediaQuery, useQuery } from "../state/hooks";
import type { AgentEdited, ToolShape } from "../wire";
import { AgentTrial } from "./agent-trial";
import { QueryResult } from "./view";

const EFFORTS = [
  { value: "", label: "Auto" },
  { value: "none", label: "None" },
  { value: "minimal", label: "Minimal" },
  { value: "low", label: "Low" },
  { value: "medium", label: "Medium" },
  { value: "high", label: "High" },
  { value: "xhigh", label: "Very high" },
  { value: "max", label: "Maximum" },
];
const PREVIEW_DELAY_MS = 350;

export default function AgentEditor({ id }: { id: string }) {
  if (!id) return <AgentForm initial={{ version: null, value: EMPTY_AGENT }} />;
  return <SavedAgent id={id} />;
}

function SavedAgent({ id }: { id: string }) {
  const query = useQuery("agents.get", { agentId: id });
  return (
    <QueryResult query={query}>
      {({ draft, version, changedBy, changedAt }) =>
        draft ? (
          <AgentForm
            initial={{
              version: version ?? null,
              changedBy: changedBy ?? "",
              changedAt: changedAt ?? null,
              value: readDraft(draft),
            }}
          />
        ) : (
          <div className="view">
            <Alert type="info" showIcon title="This agent is defined in code and can't be edited here." />
          </div>
        )
      }
    </QueryResult>
  );
}

const toEditable = (edited: AgentEdited, value: AgentValues): Editable<AgentValues> => ({
  version: edited.version ?? null,
  changedBy: edited.changedBy ?? "",
  changedAt: edited.changedAt ?? null,
  value: edited.draft ? readDraft(edited.draft) : value,
});

function AgentForm({ initial }: { initial: Editable<AgentValues> }) {
  const client = useClient();
  const { agents } = useAppState();
  const { message: toast } = App.useApp();
  const narrow = useMediaQuery("(max-width: 999px)");
  const [tab, setTab] = useState<"edit" | "try">("edit");
  const [created] = useState(!initial.value.id);
  const form = useEditForm<AgentValues>({
    kind: "agent",
    id: initial.value.id,
    initial,
    read: readDraft,
    write: async (value, expectedVersion) => {
      const edited = await client.request("agents.put", { agent: value, expectedVersion });
      return toEditable(edited, value);
    },
    load: async () => {
      const found = await client.request("agents.get", { agentId: initial.value.id });
      return found.draft ? { ...found, version: found.version ?? null, value: readDraft(found.draft) } : null;
    },
  });
  const { value, dirty, busy } = form;
  const title = value.name || value.id || "New agent";
  useLeaveGuard(dirty && !busy, title);
  const others = agents.map((agent) => agent.id).filter((other) => other !== form.saved.id);
  const idError = created && dirty ? checkAgentId(value.id, others) : "";
  const done = () => {
    void toast.success("Saved. New chats use it now.");
    if (created) setTimeout(() => navigate({ view: "agents", id: "" }));
  };
  const save = async () => {
    if (dirty && !idError && (await form.save())) done();
  };
  useSaveKey(save);
  return (
    <div className="view agent-editor">
      <div className="view-content">
        <header className="view-header">
          <div className="agent-title">
            <Avatar id={value.id} name={value.name || value.id || "?"} />
            <div>
              <p>
                <RouteLink to={{ view: "agents", id: "" }}>Agents</RouteLink>
              </p>
              <h1>{title}</h1>
            </div>
          </div>
          <div className="controls">
            {!created && <RemoveButton id={form.saved.id} name={title} form={form} />}
            <Button disabled={!dirty || busy} onClick={form.discard}>
              Discard
            </Button>
            <Button type="primary" loading={busy} disabled={!dirty || idError !== ""} onClick={() => void save()}>
              Save
            </Button>
          </div>
        </header>
        <EditConflictAlert form={form} labels={AGENT_LABELS} onSaved={done} />
        {form.error && <Alert type="error" showIcon role="alert" title={toSentence(form.error)} />}
        {narrow && (
          <Segmented
            block
            value={tab}
            onChange={setTab}
            options={[
              { value: "edit", label: "Edit" },
              { value: "try", label: "Try it" },
            ]}
          />
        )}
        <div className="agent-columns">
          {(!narrow || tab === "edit") && <Fields form={form} created={created} idError={idError} />}
          <div className="agent-trial-column" hidden={narrow && tab !== "try"}>
            <AgentTrial draft={value} disabled={created && checkAgentId(value.id, others) !== ""} />
          </div>
        </div>
      </div>
    </div>
  );
}

function Fields({ form, created, idError }: { form: EditForm<AgentValues>; created: boolean; idError: string }) {
  const { agents, models } = useAppState();
  const { value, change } = form;
  const tools = useQuery("tools.list", { all: true });
  const modelOptions = models.map((model) => ({
    value: model.id,
    label: model.available ? model.id : `${model.id} (needs a key)`,
  }));
  const roles = [...new Set(agents.map((agent) => agent.role).filter(Boolean))];
  return (
    <form className="stack form" noValidate onSubmit={(event) => event.preventDefault()}>
      <div className="two-columns">
        <FormField label="Name">
          {(control) => (
            <Input
              {...control}
              value={value.name}
              maxLength={100}
              autoFocus={created}
              onChange={({ target }) => {
                const follows = created && value.id === toAgentId(value.name);
                change({ name: target.value, ...(follows ? { id: toAgentId(target.value) } : {}) });
              }}
            />
          )}
        </FormField>
        <FormField
          label="Id"
          error={idError || undefined}
          hint={created ? "Used in AGENTS.md and in @mentions." : "The id can't be changed."}
        >
          {(control) => (
            <Input
              {...control}
              value={value.id}
              disabled={!created}
              maxLength={64}
              autoComplete="off"
              spellCheck={false}
              className="mono"
              onChange={({ target }) => change({ id: target.value })}
            />
          )}
        </FormField>
      </div>
      <FormField label="Description" hint="Other agents use it to decide when to hand off to this agent.">
        {(control) => (
          <Input
            {...control}
            value={value.description}
            maxLength={1000}
            onChange={({ target }) => change({ description: target.value })}
          />
        )}
      </FormField>
      <div className="two-columns">
        <FormField label="Model" hint="Leave empty to use the default model.">
          {(control) => (
            <AutoComplete
              {...control}
              value={value.model}
              options={modelOptions}
              placeholder="Default model"
              onChange={(model: string) => change({ model: model ?? "" })}
              allowClear
            />
          )}
        </FormField>
        <FormField label="Effort">
          {(control) => (
            <Select {...control} value={value.effort} options={EFFORTS} onChange={(effort) => change({ effort })} />
          )}
        </FormField>
      </div>
      <FormField label="Fallback models" hint="Tried in this order if the model fails.">
        {(control) => (
          <Select
            {...control}
            mode="tags"
            value={value.fallbacks}
            options={modelOptions.filter((option) => option.value !== value.model)}
            onChange={(fallbacks: string[]) => change({ fallbacks })}
          />
        )}
      </FormField>
      <FormField label="Instructions" hint="Markdown. Headings start with ###.">
        {(control) => (
          <Input.TextArea
            {...control}
            value={value.instructions}
            autoSize={{ minRows: 6, maxRows: 24 }}
            className="mono"
            onChange={({ target }) => change({ instructions: target.value })}
          />
        )}
      </FormField>
      <QueryResult query={tools}>
        {({ tools: known }) => (
          <ToolPicker known={known} selected={value.tools} onChange={(selected) => change({ tools: selected })} />
        )}
      </QueryResult>
      <div className="two-columns">
        <FormField label="Role" hint="Permissions can be granted to a role.">
          {(control) => (
            <AutoComplete
              {...control}
              value={value.role}
              options={roles.map((role) => ({ value: role }))}
              onChange={(role: string) => change({ role: role ?? "" })}
            />
          )}
        </FormField>
        <FormField label="Hands off to">
          {(control) => (
            <Select
              {...control}
              mode="multiple"
              value={value.handsOffTo}
              options={agents
                .filter((agent) => agent.id !== value.id)
                .map((agent) => ({ value: agent.id, label: agent.name || agent.id }))}
              onChange={(handsOffTo: string[]) => change({ handsOffTo })}
            />
          )}
        </FormField>
      </div>
      <FileChanges form={form} disabled={idError !== "" || !value.id} />
    </form>
  );
}

interface ToolPickerProps {
  known: ToolShape[];
  selected: string[];
  onChange: (selected: string[]) => void;
}

function ToolPicker({ known, selected, onChange }: ToolPickerProps) {
  const all = selected.includes(ALL_TOOLS);
  const groups = useMemo(() => groupTools(known), [known]);
  const unknown = selected.filter((name) => name !== ALL_TOOLS && !known.some((tool) => tool.name === name));
  const toggle = (name: string, checked: boolean) =>
    onChange(checked ? [...selected, name] : selected.filter((other) => other !== name));
  return (
    <fieldset className="tool-picker">
      <legend>Tools</legend>
      <Checkbox
        checked={all}
        onChange={({ target }) => onChange(target.checked ? [ALL_TOOLS] : known.map((tool) => tool.name))}
      >
        All tools, including ones added later
      </Checkbox>
      {!all &&
        groups.map((group) => (
          <div key={group.name}>
            <p className="muted">{group.name}</p>
            <div className="tool-grid">
              {group.tools.map((tool) => (
                <Tooltip key={tool.name} title={tool.description} placement="topLeft">
                  <Checkbox
                    checked={selected.includes(tool.name)}
                    onChange={({ target }) => toggle(tool.name, target.checked)}
                  >
                    <code>{tool.name}</code>
                    {tool.requiresApproval && <span className="muted"> (asks)</span>}
                  </Checkbox>
                </Tooltip>
              ))}
            </div>
          </div>
        ))}
      {unknown.map((name) => (
        <Tag key={name} color="warning" closable onClose={() => toggle(name, false)}>
          {`${name} is not available`}
        </Tag>
      ))}
    </fieldset>
  );
}

/** The diff of AGENTS.md that saving would make, and what the gateway warns about. */
function FileChanges({ form, disabled }: { form: EditForm<AgentValues>; disabled: boolean }) {
  const client = useClient();
  const [preview, setPreview] = useState<{ diff: string; warnings: string[]; error: string }>();
  const { value, version, dirty, conflict } = form;
  const key = JSON.stringify(value);
  const skip = disabled || !dirty || conflict !== undefined;
  useEffect(() => {
    setPreview(undefined);
    if (skip) return;
    let stale = false;
    const timer = setTimeout(() => {
      const agent = JSON.parse(key) as AgentValues;
      client.request("agents.put", { agent, expectedVersion: version, dryRun: true }).then(
        ({ diff, warnings }) => !stale && setPreview({ diff: diff ?? "", warnings: warnings ?? [], error: "" }),
        (error: Error) => !stale && setPreview({ diff: "", warnings: [], error: error.message }),
      );
    }, PREVIEW_DELAY_MS);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [client, key, version, skip]);
  const diff = useMemo(() => (preview?.diff ? parseDiff(preview.diff) : undefined), [preview]);
  if (skip) return null;
  if (!preview) return <Spin size="small" />;
  return (
    <>
      {preview.error && <Alert type="error" showIcon role="alert" title={toSentence(preview.error)} />}
      {preview.warnings.map((warning) => (
        <Alert key={warning} type="warning" showIcon title={toSentence(warning)} />
      ))}
      {diff && (
        <details className="file-changes">
          <summary>{`Changes to AGENTS.md (+${diff.added} −${diff.removed})`}</summary>
          <DiffTable diff={diff} />
        </details>
      )}
    </>
  );
}

function RemoveButton({ id, name, form }: { id: string; name: string; form: EditForm<AgentValues> }) {
  const client = useClient();
  const { modal, message: toast } = App.useApp();
  const remove = async () => {
    const request = { agentId: id, expectedVersion: form.version };
    try {
      const { warnings } = await client.request("agents.remove", { ...request, dryRun: true });
      modal.confirm({
        title: `Delete ${name}?`,
        content: (
          <Space direction="vertical">
            <span>Its chats are kept.</span>
            {(warnings ?? []).map((warning) => (
              <span key={warning}>{`${toSentence(warning)}.`}</span>
            ))}
          </Space>
        ),
        okText: "Delete",
        okButtonProps: { danger: true },
        onOk: async () => {
          try {
            await client.request("agents.remove", request);
            form.discard();
            void toast.success(`${name} was deleted.`);
            setTimeout(() => navigate({ view: "agents", id: "" }));
          } catch (error) {
            void toast.error((error as Error).message);
          }
        },
      });
    } catch (error) {
      void toast.error((error as Error).message);
    }
  };
  return (
    <Button danger type="text" onClick={() => void remove()}>
      Delete
    </Button>
  );
}

/** Save with Ctrl or Command and S. */
function useSaveKey(save: () => Promise<void>): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "s") return;
      event.preventDefault();
      void save();
    };
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  });
}
