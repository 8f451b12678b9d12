// Small icon buttons below messages. They are native buttons: a long conversation renders hundreds of them.

import { type ComponentProps, useState } from "react";
import { copyText } from "../state/clipboard";
import { Icon, type IconName } from "./icons";

interface ActionButtonProps extends ComponentProps<"button"> {
  icon: IconName;
  label: string;
  /** Tooltip; the label by default. */
  hint?: string;
}

export function ActionButton({ icon, label, hint, className = "", ...rest }: ActionButtonProps) {
  return (
    <button type="button" {...rest} className={`action ${className}`} aria-label={label} title={hint ?? label}>
      <Icon name={icon} />
    </button>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await copyText(text);
    } catch {
      return;
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <ActionButton
      icon={copied ? "check" : "copy"}
      label={label}
      hint={copied ? "Copied" : label}
      onClick={() => void copy()}
    />
  );
}
