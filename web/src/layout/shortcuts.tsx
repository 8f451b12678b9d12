// Dialog that lists the keyboard shortcuts.

import { Modal } from "antd";
import { useRestoreFocus } from "./focus";

const SHORTCUTS: [string[], string][] = [
  [["Enter"], "Send message"],
  [["Shift", "Enter"], "New line"],
  [["Alt", "Enter"], "Steer the running turn"],
  [["Esc"], "Stop the agent"],
  [["Ctrl", "K"], "Search sessions"],
  [["Ctrl", "Shift", "O"], "New chat"],
  [["?"], "Show keyboard shortcuts"],
];

export default function ShortcutsDialog({ onClose }: { onClose: () => void }) {
  useRestoreFocus();
  return (
    <Modal open title="Keyboard shortcuts" footer={null} onCancel={onClose} width={380}>
      <dl className="shortcuts">
        {SHORTCUTS.map(([keys, action]) => (
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
    </Modal>
  );
}
