// Elicitation form: input that a tool or MCP server requests during a call.

import { Button } from "antd";
import { useId, useMemo, useState } from "react";
import { ExactText } from "../components/exact-text";
import { Input } from "../components/input";
import { safeUrl } from "../markdown/links";
import { type FieldInput, type FormInput, initialInput, parseForm } from "../state/forms";
import { toSafeLine } from "../state/unicode-safety";
import type { FieldShape, FormShape } from "../wire";

interface Props {
  form: FormShape;
  disabled: boolean;
  onSubmit: (values?: Record<string, unknown>) => void;
  onDecline: () => void;
  onDismiss: () => void;
}

export function ElicitationForm({ form, disabled, onSubmit, onDecline, onDismiss }: Props) {
  const [input, setInput] = useState<FormInput>(() => initialInput(form));
  const { values, errors } = useMemo(() => parseForm(form, input), [form, input]);
  const valid = Object.keys(errors).length === 0;
  const url = form.url ? safeUrl(form.url) : undefined;
  const submit = () => {
    if (url) window.open(url, "_blank", "noopener,noreferrer");
    onSubmit(form.url ? undefined : values);
  };
  return (
    <form
      className="elicitation"
      onSubmit={(event) => {
        event.preventDefault();
        if (valid && !disabled) submit();
      }}
    >
      <ExactText text={form.message} label="Message" />
      {form.url && <ExactText text={form.url} label="URL to open" />}
      {(form.fields ?? []).map((field) => (
        <FormField
          key={field.name}
          field={field}
          disabled={disabled}
          input={input[field.name] ?? ""}
          error={errors[field.name]}
          onChange={(value) => setInput({ ...input, [field.name]: value })}
        />
      ))}
      <p className="muted">
        Your answer is sent to <strong>{toSafeLine(form.asker)}</strong>. Share only what it needs.
      </p>
      <footer>
        <Button type="primary" htmlType="submit" disabled={disabled || !valid || (form.url !== undefined && !url)}>
          {form.url ? "Open link and continue" : "Submit"}
        </Button>
        <span className="spacer" />
        <Button type="text" disabled={disabled} onClick={onDismiss}>
          Dismiss
        </Button>
        <Button danger disabled={disabled} onClick={onDecline}>
          Decline
        </Button>
      </footer>
    </form>
  );
}

interface FieldProps {
  field: FieldShape;
  input: FieldInput;
  error: string | undefined;
  disabled: boolean;
  onChange: (value: FieldInput) => void;
}

function FormField({ field, input, error, disabled, onChange }: FieldProps) {
  const id = useId();
  const [touched, setTouched] = useState(false);
  const change = (value: FieldInput) => {
    setTouched(true);
    onChange(value);
  };
  const markTouched = () => setTouched(true);
  const description = field.description ? toSafeLine(field.description, 1000) : "";
  const shownError = touched ? error : undefined;
  const control = { id, "aria-describedby": `${id}-description`, disabled, onBlur: markTouched };
  return (
    <div className="field">
      <label htmlFor={id}>
        {toSafeLine(field.title || field.name)}
        {field.required && <span className="required"> required</span>}
      </label>
      {field.kind === "choice" || (field.kind === "boolean" && typeof input === "string") ? (
        <select {...control} value={String(input)} onChange={(event) => change(event.target.value)}>
          <option value="">—</option>
          {fieldOptions(field).map(({ value, title }) => (
            <option key={value} value={value}>
              {title}
            </option>
          ))}
        </select>
      ) : field.kind === "boolean" ? (
        <input
          {...control}
          type="checkbox"
          checked={input === true}
          onChange={(event) => change(event.target.checked)}
        />
      ) : field.kind === "choices" ? (
        <CheckboxGroup
          field={field}
          id={id}
          disabled={disabled}
          selected={Array.isArray(input) ? input : []}
          onBlur={markTouched}
          onChange={change}
        />
      ) : (
        <Input
          {...control}
          value={String(input)}
          onChange={(event) => change(event.target.value)}
          inputMode={field.kind === "text" ? "text" : "decimal"}
          placeholder={PLACEHOLDERS[field.format ?? ""]}
          spellCheck={false}
          autoComplete="off"
        />
      )}
      <p id={`${id}-description`} className={shownError ? "muted error" : "muted"}>
        {shownError ?? description}
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

function fieldOptions({ kind, choices = [] }: FieldShape): { value: string; title: string }[] {
  if (kind === "boolean")
    return [
      { value: "true", title: "Yes" },
      { value: "false", title: "No" },
    ];
  return choices.map(({ value, title }) => ({ value, title: toSafeLine(title || value) }));
}

interface CheckboxGroupProps {
  field: FieldShape;
  id: string;
  disabled: boolean;
  selected: string[];
  onBlur: () => void;
  onChange: (value: string[]) => void;
}

function CheckboxGroup({ field, id, disabled, selected, onBlur, onChange }: CheckboxGroupProps) {
  const toggle = (value: string, checked: boolean) =>
    onChange(checked ? [...selected, value] : selected.filter((each) => each !== value));
  return (
    <div
      id={id}
      role="group"
      aria-label={toSafeLine(field.title || field.name)}
      aria-describedby={`${id}-description`}
      className="checkboxes"
    >
      {fieldOptions(field).map(({ value, title }) => (
        <label key={value}>
          <input
            type="checkbox"
            disabled={disabled}
            checked={selected.includes(value)}
            onBlur={onBlur}
            onChange={(event) => toggle(value, event.target.checked)}
          />{" "}
          {title}
        </label>
      ))}
    </div>
  );
}
