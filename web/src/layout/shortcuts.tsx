// Dialog that lists the keyboard shortcuts.

import { Modal } from "antd";
import { usePreferences } from "../state/preferences";
import { useRestoreFocus } from "./focus";

interface Shortcut {
  keys: string[];
  action: string;
  /** Pressed without a modifier outside of fields; can be switched off. */
  single?: boolean;
}

const COMMAND = typeof navigator !== "undefined" && /Mac|iP/.test(navigator.userAgent) ? "⌘" : "Ctrl";
const SHORTCUTS: Shortcut[] = [
  { keys: ["Enter"], action: "Send message" },
  { keys: ["Shift", "Enter"], action: "New line" },
  { keys: ["Alt", "Enter"], action: "Steer the running turn" },
  { keys: ["Esc"], action: "Stop the answer, or close the top layer" },
  { keys: [COMMAND, "K"], action: "Search chats" },
  { keys: [COMMAND, "Shift", "O"], action: "New chat" },
  { keys: ["Y"], action: "Allow an approval once", single: true },
  { keys: ["N"], action: "Deny an approval", single: true },
  { keys: ["X"], action: "Select an approval of a stack", single: true },
  { keys: ["J", "K"], action: "Next or previous approval in the inbox", single: true },
  { keys: ["?"], action: "Show keyboard shortcuts", single: true },
];

export default function ShortcutsDialog({ onClose }: { onClose: () => void }) {
  useRestoreFocus();
  const { singleKeys } = usePreferences();
  return (
    <Modal open title="Keyboard shortcuts" footer={null} onCancel={onClose} width={400}>
      <dl className="shortcuts">
        {SHORTCUTS.filter(({ single }) => !single || singleKeys).map(({ keys, action }) => (
          <div key={action}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{action}</dd>
          </div>
        ))}
      </dl>
      {!singleKeys && <p className="muted">Single-key shortcuts are off. Turn them on in Settings › Appearance.</p>}
    </Modal>
  );
}
