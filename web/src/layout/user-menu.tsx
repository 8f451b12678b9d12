// User menu at the bottom of the sidebar: connection status, theme, keyboard shortcuts, help and sign-out.

import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { Icon } from "../components/icons";
import { useAppState } from "../state/hooks";
import { THEME_MODES, THEME_NAMES, updatePreferences, usePreferences } from "../state/preferences";

const HELP_URL = "https://github.com/atlas-agents/atlas-agents/blob/main/docs/index.md";
const STATUS_NAMES = {
  online: "Connected",
  connecting: "Connecting…",
  offline: "Disconnected",
  unauthorized: "Access denied",
};

interface Props {
  onShortcuts: () => void;
  onSignOut: () => void;
}

export function UserMenu({ onShortcuts, onSignOut }: Props) {
  const { status, principal, server } = useAppState();
  const { theme } = usePreferences();
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!open) return;
    root.current?.querySelector<HTMLElement>("[role=menu] [aria-checked=true]")?.focus();
    const closeOutside = (event: Event) => !root.current?.contains(event.target as Node) && setOpen(false);
    document.addEventListener("pointerdown", closeOutside);
    document.addEventListener("focusin", closeOutside);
    return () => {
      document.removeEventListener("pointerdown", closeOutside);
      document.removeEventListener("focusin", closeOutside);
    };
  }, [open]);
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const choose = (action: () => void) => () => {
    close();
    action();
  };
  const handleKeyDown = (event: KeyboardEvent) => {
    const items = [...(root.current?.querySelectorAll<HTMLElement>("[role^=menuitem]") ?? [])];
    const index = items.indexOf(document.activeElement as HTMLElement);
    const target = {
      ArrowDown: items[(index + 1) % items.length],
      ArrowUp: items.at(index - 1),
      Home: items[0],
      End: items.at(-1),
    }[event.key];
    if (event.key === "Escape") close();
    else if (target) target.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const name = !principal || principal.id === "owner" ? "You" : principal.id;
  return (
    <div className="user-menu" ref={root}>
      <button
        ref={button}
        type="button"
        className="user-button"
        aria-haspopup="menu"
        aria-expanded={open}
        title={server ? `${server.name} ${server.version}` : undefined}
        onClick={() => setOpen(!open)}
      >
        <span className="avatar" aria-hidden>
          {name.slice(0, 1).toUpperCase()}
        </span>
        <span className="user-name">{name}</span>
        <span className={`connection is-${status}`}>
          <i aria-hidden /> {STATUS_NAMES[status]}
        </span>
        <Icon name="up" />
      </button>
      {open && (
        <div className="popup-menu" role="menu" aria-label="User menu" tabIndex={-1} onKeyDown={handleKeyDown}>
          <div role="group" aria-labelledby="theme-label">
            <span className="group-label" id="theme-label">
              Theme
            </span>
            {THEME_MODES.map((mode) => (
              <button
                key={mode}
                type="button"
                role="menuitemradio"
                aria-checked={theme === mode}
                tabIndex={-1}
                onClick={() => updatePreferences({ theme: mode })}
              >
                <span className="check" aria-hidden>
                  {theme === mode && <Icon name="check" />}
                </span>
                {THEME_NAMES[mode]}
              </button>
            ))}
          </div>
          <hr />
          <button type="button" role="menuitem" tabIndex={-1} onClick={choose(onShortcuts)}>
            Keyboard shortcuts
          </button>
          <a role="menuitem" tabIndex={-1} href={HELP_URL} target="_blank" rel="noreferrer" onClick={close}>
            Help
          </a>
          <button type="button" role="menuitem" tabIndex={-1} onClick={choose(onSignOut)}>
            Sign out
          </button>
        </div>
      )}
    </div>
  );
}
