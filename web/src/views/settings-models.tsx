// Settings › Models: the model in use, providers with their keys, and local models.

import { App, Button, Switch, Tag } from "antd";
import { useEffect, useState } from "react";
import { navigate } from "../layout/router";
import AddKey from "../setup/add-key";
import { LocalModelDownload } from "../setup/local-model";
import { EFFORTS, formatBytes, modelName, useOfferModels, useSelectModel } from "../setup/models";
import { ChooseModel, UseProvider } from "../setup/setup-card";
import { useAppState, useClient, useQuery } from "../state/hooks";
import type { LocalModelShape, ProviderShape, SetupStatus } from "../wire";
import { QueryResult } from "./view";

const STATES: Record<ProviderShape["state"], { label: string; color: string }> = {
  connected: { label: "Connected", color: "success" },
  needs_key: { label: "Needs a key", color: "default" },
  not_reachable: { label: "Not reachable", color: "default" },
};

export default function ModelSettings() {
  const client = useClient();
  const status = useQuery("setup.status", {});
  const providers = useQuery("providers.list", {});
  const [adding, setAdding] = useState<string>();
  const reloadStatus = status.reload;
  const reloadProviders = providers.reload;
  useEffect(() => {
    const update = ({ kind }: { kind: string }) => {
      if (kind !== "secret" && kind !== "model") return;
      reloadStatus();
      reloadProviders();
    };
    client.resourceListeners.add(update);
    return () => {
      client.resourceListeners.delete(update);
    };
  }, [client, reloadStatus, reloadProviders]);
  return (
    <>
      <QueryResult query={status} what="the model in use">
        {(data) => <CurrentModel status={data} />}
      </QueryResult>
      <h2 className="section-title">Providers</h2>
      <QueryResult query={providers} what="the providers">
        {({ providers: list, local }) => (
          <>
            <ul className="setting-rows">
              {list.map((provider) => (
                <ProviderRow key={provider.id} provider={provider} onAddKey={() => setAdding(provider.id)} />
              ))}
            </ul>
            <h2 className="section-title">Local models</h2>
            <ul className="setting-rows">
              {local.map((model) => (
                <LocalRow key={model.id} model={model} current={status.data?.current.model ?? ""} />
              ))}
            </ul>
          </>
        )}
      </QueryResult>
      {adding && <AddKey provider={adding} onClose={() => setAdding(undefined)} />}
    </>
  );
}

function CurrentModel({ status: { current, done } }: { status: SetupStatus }) {
  const { agents } = useAppState();
  const select = useSelectModel();
  const effort = EFFORTS.find(({ value }) => value === (current.effort ?? ""))?.label;
  const others = agents.filter((agent) => agent.model !== current.model);
  return (
    <>
      <h2 className="section-title">Default model</h2>
      <ul className="setting-rows">
        <li>
          <span>
            <strong>{modelName(current.title)}</strong>
            {current.effort && ` · Effort: ${effort ?? current.effort}`}
            <span className="muted">
              {" "}
              Used by agents without a model of their own.
              {others.length > 0 &&
                ` ${others.length === 1 ? "1 agent uses" : `${others.length} agents use`} another one.`}
            </span>
          </span>
          <span className="row">
            {done && <Button onClick={() => void select("").catch(() => undefined)}>Reset</Button>}
            <Button onClick={() => navigate({ view: "setup", id: "" })}>Run set-up again</Button>
          </span>
        </li>
      </ul>
    </>
  );
}

function ProviderRow({ provider, onAddKey }: { provider: ProviderShape; onAddKey: () => void }) {
  const client = useClient();
  const { modal, message: toast } = App.useApp();
  const { label, color } = STATES[provider.state];
  const [open, setOpen] = useState(false);
  const models = provider.offered?.length ? `Models (${provider.offered.length})` : "Models";
  const users = provider.agents ?? [];
  const remove = () =>
    modal.confirm({
      title: `Remove the key of ${provider.title}?`,
      content: users.length
        ? `${users.length === 1 ? "1 agent" : `${users.length} agents`} will use another model instead.`
        : "No agent uses it.",
      okText: "Remove",
      okButtonProps: { danger: true },
      onOk: () =>
        client.request("secrets.remove", { provider: provider.id }).then(
          () => void toast.success("Key removed"),
          (error: Error) => void toast.error(error.message),
        ),
    });
  return (
    <li>
      <span>
        <strong>{provider.title}</strong> <Tag color={color}>{label}</Tag>
        <span className="muted">{describeSource(provider)}</span>
      </span>
      <span className="row">
        {provider.source === "server" && provider.state === "connected" && (
          <ChooseModel provider={provider.id} models={provider.models ?? []} />
        )}
        {provider.source !== "server" && provider.state === "connected" && <UseProvider provider={provider.id} />}
        {provider.state === "connected" && (
          <Button aria-expanded={open} aria-label={`${models} of ${provider.title}`} onClick={() => setOpen(!open)}>
            {models}
          </Button>
        )}
        {provider.source === "stored" && (
          <>
            <Button onClick={onAddKey}>Replace</Button>
            <Button danger onClick={remove}>
              Remove
            </Button>
          </>
        )}
        {provider.state === "needs_key" && <Button onClick={onAddKey}>Add key</Button>}
      </span>
      {open && <ModelSwitches provider={provider} />}
    </li>
  );
}

/** One switch per model: whether chats can choose it. Models that agents use can always be chosen. */
function ModelSwitches({ provider: { id, title, offered = [] } }: { provider: ProviderShape }) {
  const client = useClient();
  const { models } = useAppState();
  const offer = useOfferModels();
  const [names, setNames] = useState<string[]>();
  const [error, setError] = useState("");
  useEffect(() => {
    client.request("providers.test", { provider: id }).then(
      (tested) => (tested.ok ? setNames(tested.models ?? []) : setError(tested.error ?? "The test failed.")),
      (failure: Error) => setError(failure.message),
    );
  }, [client, id]);
  const used = new Set(models.filter(({ agents }) => agents.length > 0).map((model) => model.id));
  if (error)
    return (
      <p className="error" role="alert">
        {error}
      </p>
    );
  if (!names) return <p className="muted">Loading the models…</p>;
  const shown = [...new Set([...names, ...offered])];
  return (
    <fieldset className="model-switches" aria-label={`Models of ${title} in the picker`}>
      {shown.map((name) => {
        const ref = `${id}/${name}`;
        return (
          <div key={name} className="row">
            <Switch
              size="small"
              aria-label={name}
              checked={used.has(ref) || offered.includes(name)}
              disabled={used.has(ref)}
              onChange={(on) => void offer([ref], on).catch(() => undefined)}
            />
            {name} {used.has(ref) && <Tag>In use</Tag>}
          </div>
        );
      })}
      {shown.length === 0 && <p className="muted">It has no models.</p>}
    </fieldset>
  );
}

function describeSource({ source, variable, lastFour, addedAt, baseUrl }: ProviderShape): string {
  if (source === "environment") return `From ${variable}; change it there.`;
  if (source === "server") return baseUrl ?? "";
  if (source !== "stored") return "";
  const date = addedAt ? new Date(addedAt).toLocaleDateString(undefined, { day: "numeric", month: "short" }) : "";
  return [lastFour && `••••${lastFour}`, date && `added ${date}`, baseUrl].filter(Boolean).join(", ");
}

function LocalRow({ model, current }: { model: LocalModelShape; current: string }) {
  const select = useSelectModel();
  const ref = `local/${model.id}`;
  return (
    <li>
      <span>
        <strong>{model.title}</strong> <span className="muted">{formatBytes(model.size)}</span>
        <span className="muted">{model.label}</span>
      </span>
      <span className="row">
        {current === ref ? (
          <Tag color="success">In use</Tag>
        ) : model.state === "ready" && !model.install ? (
          <Button onClick={() => void select(ref).catch(() => undefined)}>Use</Button>
        ) : (
          <LocalModelDownload model={model} />
        )}
      </span>
    </li>
  );
}
