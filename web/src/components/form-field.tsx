// A control of a form with its label, and its error or a hint.

import { type ReactNode, useId } from "react";

interface ControlProps {
  id: string;
  status: "error" | "";
  "aria-invalid": boolean;
  "aria-describedby": string | undefined;
}

interface FormFieldProps {
  label: string;
  error?: string | undefined;
  hint?: ReactNode;
  children: (control: ControlProps) => ReactNode;
}

/** A control with its label above, and its error or a hint below. */
export function FormField({ label, error, hint, children }: FormFieldProps) {
  const id = useId();
  const description = error ?? hint;
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children({
        id,
        status: error ? "error" : "",
        "aria-invalid": error !== undefined,
        "aria-describedby": description ? `${id}-description` : undefined,
      })}
      {description && (
        <p id={`${id}-description`} className={error ? "error" : "muted"} role={error ? "alert" : undefined}>
          {description}
        </p>
      )}
    </div>
  );
}
