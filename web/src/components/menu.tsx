// Dropdown menu of a button. Closing it returns the focus to the button, unless the focus has moved elsewhere.

import { Dropdown, type MenuProps } from "antd";
import { cloneElement, type ReactElement, type Ref, useRef } from "react";

interface Props {
  items: MenuProps["items"];
  onSelect?: (key: string) => void;
  open?: boolean;
  onOpenChange?: (open: boolean) => void;
  children: ReactElement<{ ref?: Ref<HTMLButtonElement> }>;
}

export function DropdownMenu({ items, onSelect, open, onOpenChange, children }: Props) {
  const button = useRef<HTMLButtonElement>(null);
  const handleOpenChange = (next: boolean) => {
    onOpenChange?.(next);
    if (next) return;
    const focused = document.activeElement;
    if (!focused || focused === document.body || focused.closest(".ant-dropdown")) button.current?.focus();
  };
  return (
    <Dropdown
      trigger={["click"]}
      autoFocus
      onOpenChange={handleOpenChange}
      menu={{ items, ...(onSelect ? { onClick: ({ key }) => onSelect(key) } : {}) }}
      {...(open === undefined ? {} : { open })}
    >
      {cloneElement(children, { ref: button })}
    </Dropdown>
  );
}
