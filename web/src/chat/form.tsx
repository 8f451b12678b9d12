// What a tool asks for while it works: who asks and gets the answer, in which words, and the fields to fill in.

import { Button, Input } from "antd";
import { useId, useMemo, useState } from "react";
import { safeAddress } from "../markdown/links";
import { startOf, valuesOf, type Written } from "../state/forms";
import { inOneLine } from "../state/words";
import type { FieldShape, FormShape } from "../wire";
import { Exact } from "./exact";

interface Props {
  form: FormShape;
  off: boolean;
  onSend: (values?: Record<string, unknown>) => void;
  onDecline: () => void;
  onDismiss: () => void;
}

export function Form({ form, off, onSend, onDecline, onDismiss }: Props) {
  const [written, setWritten] = useState<Written>(() => startOf(form));
  const { values, wrong } = useMemo(() => valuesOf(form, written), [form, written]);
  const ready = Object.keys(wrong).length === 0;
  const address = form.url ? safeAddress(form.url) : undefined;
  const send = () => {
    if (address) window.open(address, "_blank", "noopener,noreferrer");
    onSend(form.url ? undefined : values);
  };
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        if (ready && !off) send();
      }}
    >
      <Exact text={form.message} label="What is asked" />
      {form.url && <Exact text={form.url} label="The address to open" />}
      {(form.fields ?? []).map((field) => (
        <Line
          key={field.name}
          field={field}
          off={off}
          written={written[field.name] ?? ""}
          wrong={wrong[field.name]}
          onWrite={(value) => setWritten({ ...written, [field.name]: value })}
        />
      ))}
      <p className="quiet">
        What you answer is sent to <strong>{inOneLine(form.asker)}</strong>. Give it nothing that it need not know.
      </p>
      <footer>
        <Button type="primary" htmlType="submit" disabled={off || !ready || (form.url !== undefined && !address)}>
          {form.url ? "Open it and go on" : "Send"}
        </Button>
        <span className="spread" />
        <Button type="text" disabled={off} onClick={onDismiss}>
          Leave it unanswered
        </Button>
        <Button danger disabled={off} onClick={onDecline}>
          Decline
        </Button>
      </footer>
    </form>
  );
}

interface LineProps {
  field: FieldShape;
  written: Written[string];
  wrong: string | undefined;
  off: boolean;
  onWrite: (value: Written[string]) => void;
}

function Line({ field, written, wrong, off, onWrite }: LineProps) {
  const id = useId();
  const [touched, setTouched] = useState(false);
  const write = (value: Written[string]) => {
    setTouched(true);
    onWrite(value);
  };
  const words = field.description ? inOneLine(field.description, 1000) : "";
  const said = { id, "aria-describedby": `${id}-about`, disabled: off };
  return (
    <div className="field" onBlur={() => setTouched(true)}>
      <label htmlFor={id}>
        {inOneLine(field.title || field.name)}
        {field.required && <span className="needed"> needed</span>}
      </label>
      {field.kind === "choice" || (field.kind === "boolean" && typeof written === "string") ? (
        <select {...said} value={String(written)} onChange={(event) => write(event.target.value)}>
          <option value="">—</option>
          {optionsOf(field).map(({ value, title }) => (
            <option key={value} value={value}>
              {title}
            </option>
          ))}
        </select>
      ) : field.kind === "boolean" ? (
        <input {...said} type="checkbox" checked={written === true} onChange={(event) => write(event.target.checked)} />
      ) : field.kind === "choices" ? (
        <Several field={field} id={id} off={off} written={Array.isArray(written) ? written : []} onWrite={write} />
      ) : (
        <Input
          {...said}
          value={String(written)}
          onChange={(event) => write(event.target.value)}
          inputMode={field.kind === "text" ? "text" : "decimal"}
          placeholder={PLACEHOLDERS[field.format ?? ""]}
          spellCheck={false}
          autoComplete="off"
        />
      )}
      <p id={`${id}-about`} className={wrong && touched ? "quiet bad" : "quiet"}>
        {wrong && touched ? wrong : words}
      </p>
    </div>
  );
}

const PLACEHOLDERS: Record<string, string> = {
  email: "name@example.org",
  uri: "https://",
  date: "2026-12-31",
  "date-time": "2026-12-31T12:00:00Z",
};

function optionsOf({ kind, choices = [] }: FieldShape): { value: string; title: string }[] {
  if (kind === "boolean")
    return [
      { value: "true", title: "Yes" },
      { value: "false", title: "No" },
    ];
  return choices.map(({ value, title }) => ({ value, title: inOneLine(title || value) }));
}

function Several({
  field,
  id,
  off,
  written,
  onWrite,
}: {
  field: FieldShape;
  id: string;
  off: boolean;
  written: string[];
  onWrite: (value: string[]) => void;
}) {
  return (
    <div
      id={id}
      role="group"
      aria-label={inOneLine(field.title || field.name)}
      aria-describedby={`${id}-about`}
      className="several"
    >
      {optionsOf(field).map(({ value, title }) => (
        <label key={value}>
          <input
            type="checkbox"
            disabled={off}
            checked={written.includes(value)}
            onChange={(event) =>
              onWrite(event.target.checked ? [...written, value] : written.filter((each) => each !== value))
            }
          />{" "}
          {title}
        </label>
      ))}
    </div>
  );
}
