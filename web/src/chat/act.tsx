// A small button below a message. There are several below each, and hundreds of messages: so it is the browser's own.

import type { ComponentProps } from "react";
import { Icon, type IconName } from "../look/icon";

interface Props extends ComponentProps<"button"> {
  icon: IconName;
  what: string;
  hint?: string;
}

export function Act({ icon, what, hint, className = "", ...rest }: Props) {
  return (
    <button type="button" {...rest} className={`act ${className}`} aria-label={what} title={hint ?? what}>
      <Icon name={icon} />
    </button>
  );
}
