// Set-up card: choose a model on the first start. What was found on this machine comes first.

import { Button } from "antd";
import { type ReactNode, useEffect, useState } from "react";
import { RouteLink } from "../components/link";
import { DropdownMenu } from "../components/menu";
import { type Query, useClient, useQuery } from "../state/hooks";
import type { FoundShape, LocalModelShape, SetupStatus } from "../wire";
import AddKey from "./add-key";
import { LocalModelDownload } from "./local-model";
import { describeLastResort, formatBytes, offeredLocalModels, type UseHere, useSelectModel } from "./models";

interface Props {
  onDismiss: () => void;
  onUseHere: UseHere;
}

export default function SetupCard({ onDismiss, onUseHere }: Props) {
  const status = useSetupStatus();
  const [addingKey, setAddingKey] = useState(false);
  const drawer = addingKey && <AddKey onUseHere={onUseHere} onClose={() => setAddingKey(false)} />;
  if (!status.data || status.data.done) return drawer;
  const { current } = status.data;
  return (
    <section className="setup-card" aria-label="Choose a model">
      <header>
        <h2>Choose a model</h2>
        <button type="button" className="action" aria-label="Dismiss" title="Dismiss" onClick={onDismiss}>
          ✕
        </button>
      </header>
      <p className="muted">You’re using {describeLastResort(current)}</p>
      <ModelChoices status={status.data} onAddKey={() => setAddingKey(true)} onReady={status.reload} />
      <RouteLink to={{ view: "setup", id: "" }} className="muted">
        More options
      </RouteLink>
      {drawer}
    </section>
  );
}

/** What was found and what can be used, loaded again when a key or the model changes. */
export function useSetupStatus(): Query<SetupStatus> {
  const client = useClient();
  const status = useQuery("setup.status", {});
  const { reload } = status;
  useEffect(() => {
    const update = ({ kind }: { kind: string }) => {
      if (kind === "secret" || kind === "model") reload();
    };
    client.resourceListeners.add(update);
    return () => {
      client.resourceListeners.delete(update);
    };
  }, [client, reload]);
  return status;
}

interface ChoicesProps {
  status: SetupStatus;
  onAddKey: () => void;
  /** Called when a downloaded model can be used. */
  onReady: () => void;
}

/** The models that can be used instead: found ones first, then a key to paste and a download. */
export function ModelChoices({ status, onAddKey, onReady }: ChoicesProps) {
  const { found = [] } = status;
  return (
    <ul>
      {found.map((item) => (
        <FoundRow key={`${item.kind} ${item.provider} ${item.source}`} item={item} />
      ))}
      <Row label="Paste an API key">
        <Button onClick={onAddKey}>Add key</Button>
      </Row>
      {offeredLocalModels(status).map((model) => (
        <Row key={model.id} label={localModelLabel(model)}>
          {model.state === "ready" && !model.install ? (
            <UseButton model={`local/${model.id}`} />
          ) : (
            <LocalModelDownload model={model} onReady={onReady} />
          )}
        </Row>
      ))}
    </ul>
  );
}

function localModelLabel({ install, size, state, title }: LocalModelShape): string {
  if (install) return "For local models, run";
  return state === "ready" ? title : `Download a local model (${formatBytes(size)})`;
}

function Row({ label, children }: { label: string; children: ReactNode }) {
  return (
    <li>
      <span>{label}</span>
      {children}
    </li>
  );
}

function FoundRow({ item }: { item: FoundShape }) {
  const { models = [] } = item;
  if (item.kind === "server") {
    const address = item.source.replace(/^https?:\/\//, "").replace(/\/v1$/, "");
    const count = models.length === 1 ? "1 model" : `${models.length} models`;
    return (
      <Row label={`${item.label} at ${address}: ${count}`}>
        <ChooseModel provider={item.provider} models={models} />
      </Row>
    );
  }
  const label =
    item.source === "stored"
      ? `${item.label}: key added${item.lastFour ? ` (••••${item.lastFour})` : ""}`
      : `${item.label}: key found in ${item.source}`;
  return (
    <Row label={label}>
      <UseProvider provider={item.provider} />
    </Row>
  );
}

/** Button that lists the models of a provider when it is clicked, and offers them. */
export function UseProvider({ provider }: { provider: string }) {
  const client = useClient();
  const [models, setModels] = useState<string[]>();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const load = () => {
    setBusy(true);
    setError("");
    client
      .request("providers.test", { provider })
      .then(
        (tested) => (tested.ok ? setModels(tested.models ?? []) : setError(tested.error ?? "The test failed.")),
        (failure: Error) => setError(failure.message),
      )
      .finally(() => setBusy(false));
  };
  if (models) return <ChooseModel provider={provider} models={models} open />;
  return (
    <>
      {error && (
        <span className="error" role="alert">
          {error}
        </span>
      )}
      <Button loading={busy} onClick={load}>
        Use
      </Button>
    </>
  );
}

export function ChooseModel({ provider, models, open }: { provider: string; models: string[]; open?: boolean }) {
  const select = useSelectModel();
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(open ?? false), [open]); // the menu is positioned at the button, which is rendered first
  return (
    <DropdownMenu
      open={isOpen}
      onOpenChange={setOpen}
      items={models.map((name) => ({ key: name, label: name }))}
      onSelect={(name) => void select(`${provider}/${name}`).catch(() => undefined)}
    >
      <Button>Choose ▾</Button>
    </DropdownMenu>
  );
}

function UseButton({ model }: { model: string }) {
  const select = useSelectModel();
  return <Button onClick={() => void select(model).catch(() => undefined)}>Use</Button>;
}
