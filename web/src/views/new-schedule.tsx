// Form to create a schedule.

import { Alert, Button, Drawer, Input, Select, Space } from "antd";
import { type FormEvent, useState } from "react";
import { FormField } from "../components/form-field";
import { useAppState, useClient } from "../state/hooks";
import { PRIORITY_LABELS } from "../state/jobs";
import {
  assignError,
  CRON_EXAMPLES,
  describeCron,
  type ScheduleDraft,
  type ScheduleErrors,
  validateSchedule,
} from "../state/schedules";
import type { SchedulesAdd } from "../wire";

type Draft = ScheduleDraft & Required<Pick<SchedulesAdd, "missed" | "priority">> & { agentId?: string };

const LOCAL_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const ZONES = [...new Set([LOCAL_ZONE, "UTC", ...Intl.supportedValuesOf("timeZone")])].map((value) => ({
  value,
  label: value,
}));
const PRIORITIES = (["low", "normal", "high", "urgent"] as const).map((value) => ({
  value,
  label: PRIORITY_LABELS[value],
}));
const MISSED_RUN_POLICIES = [
  { value: "once" as const, label: "Run once when it is back" },
  { value: "skip" as const, label: "Skip the missed runs" },
];
const EMPTY_DRAFT: Draft = { name: "", cron: "", zone: LOCAL_ZONE, task: "", missed: "once", priority: "normal" };

interface Props {
  open: boolean;
  onClose: () => void;
  onCreated: () => void;
}

export function NewScheduleDrawer({ open, onClose, onCreated }: Props) {
  return (
    <Drawer open={open} onClose={onClose} size={480} title="New schedule" destroyOnHidden>
      <NewScheduleForm onClose={onClose} onCreated={onCreated} />
    </Drawer>
  );
}

function NewScheduleForm({ onClose, onCreated }: Omit<Props, "open">) {
  const client = useClient();
  const { agents } = useAppState();
  const [draft, setDraft] = useState(EMPTY_DRAFT);
  const [errors, setErrors] = useState<ScheduleErrors>({});
  const [busy, setBusy] = useState(false);
  const change = (part: Partial<Draft>) => {
    setDraft({ ...draft, ...part });
    const remaining = Object.entries(errors).filter(([field]) => !(field in part) && field !== "form");
    setErrors(Object.fromEntries(remaining));
  };
  const create = (event: FormEvent) => {
    event.preventDefault();
    const found = validateSchedule(draft);
    setErrors(found);
    if (Object.keys(found).length > 0) return;
    setBusy(true);
    const { agentId, ...rest } = draft;
    client.request("schedules.add", { ...rest, ...(agentId ? { agentId } : {}) }).then(onCreated, (error: Error) => {
      setErrors(assignError(error.message));
      setBusy(false);
    });
  };
  const defaultAgent = agents.find((agent) => agent.default)?.id;
  return (
    <form className="stack form" onSubmit={create} noValidate>
      <FormField label="Name" error={errors.name}>
        {(control) => (
          <Input
            {...control}
            value={draft.name}
            maxLength={64}
            placeholder="morning-news"
            autoComplete="off"
            autoFocus
            onChange={(event) => change({ name: event.target.value })}
          />
        )}
      </FormField>
      <FormField label="Task" error={errors.task}>
        {(control) => (
          <Input.TextArea
            {...control}
            value={draft.task}
            maxLength={20_000}
            placeholder="Summarise today’s news in our field in five lines, with links."
            autoSize={{ minRows: 3, maxRows: 12 }}
            onChange={(event) => change({ task: event.target.value })}
          />
        )}
      </FormField>
      <FormField
        label="Cron expression"
        error={errors.cron}
        hint={
          describeCron(draft.cron) ?? "Minute, hour, day of month, month and weekday, or a shortcut such as @daily."
        }
      >
        {(control) => (
          <Input
            {...control}
            value={draft.cron}
            maxLength={200}
            placeholder="0 9 * * 1-5"
            autoComplete="off"
            spellCheck={false}
            className="mono"
            onChange={(event) => change({ cron: event.target.value })}
          />
        )}
      </FormField>
      <div className="cron-examples">
        {CRON_EXAMPLES.map((cron) => (
          <Button key={cron} size="small" onClick={() => change({ cron })}>
            {describeCron(cron)}
          </Button>
        ))}
      </div>
      <FormField label="Time zone" error={errors.zone}>
        {(control) => (
          <Select {...control} showSearch value={draft.zone} options={ZONES} onChange={(zone) => change({ zone })} />
        )}
      </FormField>
      <div className="two-columns">
        <FormField label="Agent">
          {(control) => (
            <Select
              {...control}
              value={draft.agentId ?? defaultAgent}
              options={agents.map(({ id, name }) => ({ value: id, label: name || id }))}
              onChange={(agentId: string) => change({ agentId })}
            />
          )}
        </FormField>
        <FormField label="Priority">
          {(control) => (
            <Select
              {...control}
              value={draft.priority}
              options={PRIORITIES}
              onChange={(priority) => change({ priority })}
            />
          )}
        </FormField>
      </div>
      <FormField label="If the gateway is offline at that time">
        {(control) => (
          <Select
            {...control}
            value={draft.missed}
            options={MISSED_RUN_POLICIES}
            onChange={(missed) => change({ missed })}
          />
        )}
      </FormField>
      {errors.form && <Alert type="error" showIcon role="alert" title={errors.form} />}
      <Space>
        <Button type="primary" htmlType="submit" disabled={busy}>
          Create
        </Button>
        <Button onClick={onClose}>Cancel</Button>
      </Space>
    </form>
  );
}
