// Dropdown menu of a button. antd's menu is loaded when it is opened for the first time. Closing it returns the focus to
// the button, unless the focus has moved elsewhere.

import type { MenuProps } from "antd";
import { cloneElement, lazy, type MouseEvent, type ReactElement, type Ref, Suspense, useState } from "react";

interface ButtonProps {
  ref?: Ref<HTMLButtonElement>;
  onClick?: (event: MouseEvent<HTMLElement>) => void;
  onPointerEnter?: () => void;
  "aria-haspopup"?: "menu";
  "aria-expanded"?: boolean;
}

export interface DropdownMenuProps {
  items: MenuProps["items"];
  onSelect?: (key: string) => void;
  open?: boolean;
  onOpenChange?: (open: boolean) => void;
  children: ReactElement<ButtonProps>;
}

const load = () => import("./menu-popup");
const MenuPopup = lazy(load);

export function DropdownMenu({ open, onOpenChange, children, ...menu }: DropdownMenuProps) {
  const [used, setUsed] = useState(false);
  const [ownOpen, setOwnOpen] = useState(false);
  const isOpen = open ?? ownOpen;
  if (isOpen && !used) setUsed(true); // going back to the plain button would lose the focus
  const change = (next: boolean) => {
    setOwnOpen(next);
    onOpenChange?.(next);
  };
  const button = cloneElement(children, {
    "aria-haspopup": "menu",
    "aria-expanded": isOpen,
    onPointerEnter: () => void load(),
    onClick: (event) => {
      children.props.onClick?.(event);
      change(true);
    },
  });
  if (!used) return button;
  return (
    <Suspense fallback={button}>
      <MenuPopup {...menu} open={isOpen} onOpenChange={change}>
        {children}
      </MenuPopup>
    </Suspense>
  );
}
