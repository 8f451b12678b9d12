// Line or card above the composer about the model in use: the set-up card on the first start, or a short notice.

import { lazy, memo, Suspense, useState } from "react";
import { useAppState } from "../state/hooks";
import type { UseHere } from "./models";

const SetupCard = lazy(() => import("./setup-card"));
const AddKey = lazy(() => import("./add-key"));

const CARD_KEY = "atlas.setup-dismissed";
const NOTICE_KEY = "atlas.notice-dismissed";
/** Models that only show that everything works. */
const TRIAL_MODELS = ["local/smollm2-135m", "demo"];

interface Props {
  agentId: string;
  /** The model that was chosen for this chat. */
  chosen: string;
  onUseHere: UseHere;
}

export const ModelHint = memo(function ModelHint({ agentId, chosen, onUseHere }: Props) {
  const { agents, principal, status } = useAppState();
  const [dismissed, setDismissed] = useState(() => localStorage.getItem(CARD_KEY) !== null);
  const agent = agents.find(({ id }) => id === agentId) ?? agents.find((each) => each.default) ?? agents[0];
  const admin = principal?.scopes.includes("admin") ?? false;
  if (!agent || status !== "online" || chosen) return null;
  if (!admin || !TRIAL_MODELS.includes(agent.model))
    return <Notice text={agent.notice ?? ""} canAddKey={admin} onUseHere={onUseHere} />;
  if (dismissed)
    return (
      <p className="model-hint">
        Tiny demo model ·{" "}
        <button
          type="button"
          className="plain link"
          onClick={() => {
            localStorage.removeItem(CARD_KEY);
            setDismissed(false);
          }}
        >
          Change
        </button>
      </p>
    );
  return (
    <Suspense>
      <SetupCard
        onUseHere={onUseHere}
        onDismiss={() => {
          localStorage.setItem(CARD_KEY, "1");
          setDismissed(true);
        }}
      />
    </Suspense>
  );
});

function Notice({ text, canAddKey, onUseHere }: { text: string; canAddKey: boolean; onUseHere: UseHere }) {
  const [dismissed, setDismissed] = useState(() => localStorage.getItem(NOTICE_KEY));
  const [adding, setAdding] = useState(false);
  if (!text || dismissed === text) return null;
  return (
    <p className="model-hint">
      {text}{" "}
      {canAddKey && text.includes(" key") && (
        <button type="button" className="plain link" onClick={() => setAdding(true)}>
          Add key
        </button>
      )}{" "}
      <button
        type="button"
        className="action"
        aria-label="Dismiss"
        title="Dismiss"
        onClick={() => {
          localStorage.setItem(NOTICE_KEY, text);
          setDismissed(text);
        }}
      >
        ✕
      </button>
      <Suspense>{adding && <AddKey onUseHere={onUseHere} onClose={() => setAdding(false)} />}</Suspense>
    </p>
  );
}
