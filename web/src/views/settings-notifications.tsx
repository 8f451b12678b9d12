// Settings › Notifications: silent notifications of this browser while the page is in the background.

import { Alert, Switch } from "antd";
import { useState } from "react";
import { updatePreferences, usePreferences } from "../state/preferences";

type Name = "notifyApprovals" | "notifyAnswers" | "notifyJobs";

const CHOICES: { name: Name; label: string; hint: string }[] = [
  { name: "notifyApprovals", label: "Approvals", hint: "When an agent waits for your approval." },
  { name: "notifyAnswers", label: "Answers", hint: "When an answer finishes while you are elsewhere." },
  { name: "notifyJobs", label: "Jobs", hint: "When a job finishes or fails." },
];

export default function NotificationSettings() {
  const preferences = usePreferences();
  const supported = "Notification" in window;
  const [permission, setPermission] = useState(supported ? Notification.permission : "denied");
  const change = async (name: Name, checked: boolean) => {
    if (checked && permission !== "granted") {
      const answer = await Notification.requestPermission();
      setPermission(answer);
      if (answer !== "granted") return;
    }
    updatePreferences({ [name]: checked });
  };
  return (
    <div className="panel stack">
      {!supported && <Alert type="info" showIcon title="This browser can’t show notifications." />}
      {supported && permission === "denied" && (
        <Alert
          type="warning"
          showIcon
          title="Your browser blocks notifications from this page. Allow them in the site settings of your browser."
        />
      )}
      {CHOICES.map(({ name, label, hint }) => (
        <div className="setting" key={name}>
          <div>
            <strong id={name}>{label}</strong>
            <p className="muted">{hint}</p>
          </div>
          <Switch
            aria-labelledby={name}
            checked={preferences[name] && permission === "granted"}
            disabled={permission === "denied"}
            onChange={(checked) => void change(name, checked)}
          />
        </div>
      ))}
      <p className="muted">Notifications make no sound and appear only while this page is in the background.</p>
    </div>
  );
}
