// Panel that a button opens. antd draws it; it is loaded when the first one opens.

import type { PopoverProps } from "antd";
import { cloneElement, lazy, type MouseEventHandler, type ReactElement, Suspense, useState } from "react";

interface Props {
  content: PopoverProps["content"];
  placement?: PopoverProps["placement"];
  children: ReactElement<{ onClick?: MouseEventHandler; onPointerEnter?: () => void }>;
}

const load = () => import("./popover-host");
const Host = lazy(load);

export function Popover({ content, placement = "topLeft", children }: Props) {
  const [open, setOpen] = useState<boolean>();
  const button = cloneElement(children, { onClick: () => setOpen(true), onPointerEnter: () => void load() });
  if (open === undefined) return button;
  return (
    <Suspense fallback={button}>
      <Host trigger="click" placement={placement} content={content} open={open} onOpenChange={setOpen}>
        {children}
      </Host>
    </Suspense>
  );
}
