// What the keyboard can do.

import { Modal } from "antd";
import { useFocusBack } from "./focus";

const KEYS: [string[], string][] = [
  [["Enter"], "Send"],
  [["Shift", "Enter"], "A new line"],
  [["Esc"], "Stop the turn"],
  [["Ctrl", "K"], "Search sessions"],
  [["Ctrl", "Shift", "O"], "New chat"],
  [["?"], "This list"],
];

export default function Keys({ onClose }: { onClose: () => void }) {
  useFocusBack();
  return (
    <Modal open title="Keys" footer={null} onCancel={onClose} width={380}>
      <dl className="keys">
        {KEYS.map(([keys, words]) => (
          <div key={words}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
    </Modal>
  );
}
