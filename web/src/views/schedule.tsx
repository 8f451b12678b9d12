// A new schedule: its form, with what is wrong said where it is.

import { Alert, Button, Drawer, Input, Select, Space } from "antd";
import { type FormEvent, type ReactNode, useId, useState } from "react";
import { cronWords, type Draft, EXAMPLES, type Faults, faultOf, faultsOf } from "../state/schedules";
import { useAtlas, useHouse } from "../state/use";
import type { SchedulesAdd } from "../wire";

type More = Required<Pick<SchedulesAdd, "missed" | "priority">> & { agentId?: string };
type Whole = Draft & More;

const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const ZONES = [...new Set([HERE, "UTC", ...Intl.supportedValuesOf("timeZone")])].map((value) => ({
  value,
  label: value,
}));
const PRIORITIES = (["low", "normal", "high", "urgent"] as const).map((value) => ({ value, label: value }));
const MISSED = [
  { value: "once" as const, label: "done once, as soon as it is back" },
  { value: "skip" as const, label: "left out" },
];
const EMPTY: Whole = { name: "", cron: "", zone: HERE, task: "", missed: "once", priority: "normal" };

interface Props {
  open: boolean;
  onClose: () => void;
  onAdded: () => void;
}

export function NewSchedule({ open, onClose, onAdded }: Props) {
  return (
    <Drawer open={open} onClose={onClose} size={480} title="New schedule" destroyOnHidden>
      <Form onClose={onClose} onAdded={onAdded} />
    </Drawer>
  );
}

function Form({ onClose, onAdded }: Omit<Props, "open">) {
  const atlas = useAtlas();
  const { agents } = useHouse();
  const [draft, setDraft] = useState(EMPTY);
  const [faults, setFaults] = useState<Faults>({});
  const [busy, setBusy] = useState(false);
  const change = (part: Partial<Whole>) => {
    setDraft({ ...draft, ...part });
    setFaults(Object.fromEntries(Object.entries(faults).filter(([place]) => !(place in part) && place !== "form")));
  };
  const add = (event: FormEvent) => {
    event.preventDefault();
    const found = faultsOf(draft);
    setFaults(found);
    if (Object.keys(found).length > 0) return;
    setBusy(true);
    const { agentId, ...rest } = draft;
    atlas.ask("schedules.add", { ...rest, ...(agentId ? { agentId } : {}) }).then(onAdded, (error: Error) => {
      setFaults(faultOf(error.message));
      setBusy(false);
    });
  };
  const standard = agents.find((agent) => agent.default)?.id;
  return (
    <form className="stack fields" onSubmit={add} noValidate>
      <Labelled name="Name" fault={faults.name}>
        {(rest) => (
          <Input
            {...rest}
            value={draft.name}
            maxLength={64}
            placeholder="morning-news"
            autoComplete="off"
            autoFocus
            onChange={(event) => change({ name: event.target.value })}
          />
        )}
      </Labelled>
      <Labelled name="Task" fault={faults.task}>
        {(rest) => (
          <Input.TextArea
            {...rest}
            value={draft.task}
            maxLength={20_000}
            placeholder="What is new in our field? Five lines, with links."
            autoSize={{ minRows: 3, maxRows: 12 }}
            onChange={(event) => change({ task: event.target.value })}
          />
        )}
      </Labelled>
      <Labelled
        name="When"
        fault={faults.cron}
        hint={cronWords(draft.cron) ?? "Minute, hour, day of month, month, weekday; or a word like @daily."}
      >
        {(rest) => (
          <Input
            {...rest}
            value={draft.cron}
            maxLength={200}
            placeholder="0 9 * * 1-5"
            autoComplete="off"
            spellCheck={false}
            className="mono"
            onChange={(event) => change({ cron: event.target.value })}
          />
        )}
      </Labelled>
      <div className="examples">
        {EXAMPLES.map((cron) => (
          <Button key={cron} size="small" onClick={() => change({ cron })}>
            {cronWords(cron)}
          </Button>
        ))}
      </div>
      <Labelled name="Time zone" fault={faults.zone}>
        {(rest) => (
          <Select {...rest} showSearch value={draft.zone} options={ZONES} onChange={(zone) => change({ zone })} />
        )}
      </Labelled>
      <div className="pair">
        <Labelled name="Agent">
          {(rest) => (
            <Select
              {...rest}
              value={draft.agentId ?? standard}
              options={agents.map(({ id, name }) => ({ value: id, label: name || id }))}
              onChange={(agentId: string) => change({ agentId })}
            />
          )}
        </Labelled>
        <Labelled name="Priority">
          {(rest) => (
            <Select
              {...rest}
              value={draft.priority}
              options={PRIORITIES}
              onChange={(priority) => change({ priority })}
            />
          )}
        </Labelled>
      </div>
      <Labelled name="If the gateway was off then">
        {(rest) => <Select {...rest} value={draft.missed} options={MISSED} onChange={(missed) => change({ missed })} />}
      </Labelled>
      {faults.form && <Alert type="error" showIcon role="alert" title={faults.form} />}
      <Space>
        <Button type="primary" htmlType="submit" disabled={busy}>
          Add
        </Button>
        <Button onClick={onClose}>Cancel</Button>
      </Space>
    </form>
  );
}

interface Control {
  id: string;
  status: "error" | "";
  "aria-invalid": boolean;
  "aria-describedby": string | undefined;
}

/** A control with its name above it, and below it what is wrong, or else a hint. */
function Labelled({
  name,
  fault,
  hint,
  children,
}: {
  name: string;
  fault?: string | undefined;
  hint?: string;
  children: (rest: Control) => ReactNode;
}) {
  const id = useId();
  const words = fault ?? hint;
  return (
    <div className="field">
      <label htmlFor={id}>{name}</label>
      {children({
        id,
        status: fault ? "error" : "",
        "aria-invalid": fault !== undefined,
        "aria-describedby": words ? `${id}about` : undefined,
      })}
      {words && (
        <p id={`${id}about`} className={fault ? "bad" : "quiet"} role={fault ? "alert" : undefined}>
          {words}
        </p>
      )}
    </div>
  );
}
