// A menu at a button. When it closes, the focus is at the button again, unless it went somewhere by itself.

import { Dropdown, type MenuProps } from "antd";
import { cloneElement, type ReactElement, type Ref, useRef } from "react";

interface Props {
  items: MenuProps["items"];
  onChoose?: (key: string) => void;
  open?: boolean;
  onOpen?: (open: boolean) => void;
  children: ReactElement<{ ref?: Ref<HTMLButtonElement> }>;
}

export function Menu({ items, onChoose, open, onOpen, children }: Props) {
  const button = useRef<HTMLButtonElement>(null);
  const changed = (next: boolean) => {
    onOpen?.(next);
    if (next) return;
    const at = document.activeElement;
    if (!at || at === document.body || at.closest(".ant-dropdown")) button.current?.focus();
  };
  return (
    <Dropdown
      trigger={["click"]}
      autoFocus
      onOpenChange={changed}
      menu={{ items, ...(onChoose ? { onClick: ({ key }) => onChoose(key) } : {}) }}
      {...(open === undefined ? {} : { open })}
    >
      {cloneElement(children, { ref: button })}
    </Dropdown>
  );
}
