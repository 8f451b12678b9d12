// The open menu of a button, drawn by antd.

import { Dropdown } from "antd";
import { cloneElement, type Ref, useRef } from "react";
import type { DropdownMenuProps } from "./menu";

interface Props extends DropdownMenuProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
}

export default function MenuPopup({ items, onSelect, open, onOpenChange, children }: Props) {
  const button = useRef<HTMLButtonElement>(null);
  const handleOpenChange = (next: boolean) => {
    onOpenChange(next);
    if (next) return;
    const focused = document.activeElement;
    if (!focused || focused === document.body || focused.closest(".ant-dropdown")) button.current?.focus();
  };
  const ref: Ref<HTMLButtonElement> = button;
  return (
    <Dropdown
      trigger={["click"]}
      autoFocus
      open={open}
      onOpenChange={handleOpenChange}
      menu={{ items, ...(onSelect ? { onClick: ({ key }) => onSelect(key) } : {}) }}
    >
      {cloneElement(children, { ref })}
    </Dropdown>
  );
}
