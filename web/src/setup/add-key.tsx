// Drawer that tests and stores the API key of a provider, then offers its models.

import { Button, Drawer, Input, Radio, Select } from "antd";
import { useState } from "react";
import { useFeedback } from "../components/feedback";
import { FormField } from "../components/form-field";
import { useClient, useQuery } from "../state/hooks";
import { EFFORTS, type EffortChoice, modelName, type UseHere, useOfferModels, useSelectModel } from "./models";

interface Props {
  /** Provider to start with. */
  provider?: string;
  onClose: () => void;
  /** Uses a model in the chat that is open; without it, no chat is open. */
  onUseHere?: UseHere;
}

const COMPATIBLE = "http";

export default function AddKey({ provider: initial = "anthropic", onClose, onUseHere }: Props) {
  const client = useClient();
  const providers = useQuery("providers.list", {});
  const [provider, setProvider] = useState(initial);
  const [key, setKey] = useState("");
  const [baseUrl, setBaseUrl] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [models, setModels] = useState<string[]>();
  const compatible = provider === COMPATIBLE;
  const unreachable = error.startsWith("Couldn't reach");
  const complete = compatible ? baseUrl.trim() !== "" : key.trim() !== "";
  const credentials = { provider, key: key.trim(), ...(compatible ? { baseUrl: baseUrl.trim() } : {}) };

  const save = async (found: string[]) => {
    await client.request("secrets.put", credentials);
    setKey("");
    setModels(found);
  };
  const attempt = async (work: () => Promise<void>) => {
    setBusy(true);
    setError("");
    try {
      await work();
    } catch (failure) {
      setError((failure as Error).message);
    } finally {
      setBusy(false);
    }
  };
  const testAndSave = () =>
    attempt(async () => {
      const tested = await client.request("providers.test", credentials);
      if (tested.ok) await save(tested.models ?? []);
      else setError(tested.error ?? "The test failed.");
    });
  return (
    <Drawer open title="Add key" onClose={onClose} size={420} destroyOnHidden>
      {models ? (
        <UseModel provider={provider} models={models} onDone={onClose} onUseHere={onUseHere} />
      ) : (
        <form
          className="stack"
          onSubmit={(event) => {
            event.preventDefault();
            if (complete && !busy) void testAndSave();
          }}
        >
          <FormField label="Provider">
            {({ id }) => (
              <Select
                id={id}
                value={provider}
                onChange={(value) => {
                  setProvider(value);
                  setError("");
                }}
                options={(providers.data?.providers ?? [])
                  .filter((each) => each.source !== "server")
                  .map((each) => ({
                    value: each.id,
                    label: each.title,
                    disabled: each.source === "environment",
                  }))}
              />
            )}
          </FormField>
          <FormField
            label={compatible ? "API key (optional)" : "API key"}
            error={error || undefined}
            hint="Stored on this computer in a file only you can read. It won’t be shown again."
          >
            {(control) => (
              <Input.Password
                {...control}
                value={key}
                autoComplete="off"
                spellCheck={false}
                autoFocus
                onChange={(event) => setKey(event.target.value)}
              />
            )}
          </FormField>
          {compatible && (
            <FormField label="Base URL">
              {({ id }) => (
                <Input
                  id={id}
                  value={baseUrl}
                  placeholder="http://localhost:8000/v1"
                  onChange={(event) => setBaseUrl(event.target.value)}
                />
              )}
            </FormField>
          )}
          <div className="row">
            <Button type="primary" htmlType="submit" loading={busy} disabled={!complete}>
              Test and save
            </Button>
            {unreachable && (
              <Button disabled={busy} onClick={() => void attempt(() => save([]))}>
                Save anyway
              </Button>
            )}
          </div>
        </form>
      )}
    </Drawer>
  );
}

type Purpose = "agents" | "chat" | "offer";

interface UseModelProps {
  provider: string;
  models: string[];
  onDone: () => void;
  onUseHere: UseHere | undefined;
}

/** Second step: choose one of the provider's models, and what to use it for. */
function UseModel({ provider, models, onDone, onUseHere }: UseModelProps) {
  const select = useSelectModel();
  const offer = useOfferModels();
  const { message: toast } = useFeedback();
  const [model, setModel] = useState(models[0] ?? "");
  const [effort, setEffort] = useState<EffortChoice>("");
  const [purpose, setPurpose] = useState<Purpose>("agents");
  const [busy, setBusy] = useState(false);
  const ref = `${provider}/${model.trim()}`;
  const apply = async () => {
    if (purpose === "agents") return select(ref, effort);
    await offer([ref]);
    if (purpose === "chat") {
      onUseHere?.(ref, effort);
      toast.success(`Now using ${modelName(model)} in this chat`);
    } else toast.success(`${modelName(model)} is offered in all chats`);
  };
  const use = () => {
    setBusy(true);
    apply().then(onDone, () => setBusy(false));
  };
  const purposes: { value: Purpose; label: string }[] = [
    ...(onUseHere ? [{ value: "chat" as const, label: "This chat" }] : []),
    { value: "agents", label: "All agents without a model" },
    { value: "offer", label: "Only offer it in the model picker" },
  ];
  return (
    <div className="stack">
      <p role="status" className="success">
        {models.length
          ? `Key works. ${models.length} ${models.length === 1 ? "model" : "models"} available.`
          : "Saved."}
      </p>
      <FormField label="Model">
        {({ id }) =>
          models.length ? (
            <Select
              id={id}
              showSearch
              value={model}
              onChange={setModel}
              options={models.map((name) => ({ value: name, label: name }))}
            />
          ) : (
            <Input id={id} value={model} onChange={(event) => setModel(event.target.value)} />
          )
        }
      </FormField>
      <fieldset className="choices">
        <legend>Use for</legend>
        <Radio.Group value={purpose} onChange={({ target }) => setPurpose(target.value as Purpose)}>
          {purposes.map(({ value, label }) => (
            <Radio key={value} value={value}>
              {label}
            </Radio>
          ))}
        </Radio.Group>
      </fieldset>
      {purpose !== "offer" && (
        <FormField label="Effort">
          {({ id }) => <Select id={id} value={effort} onChange={setEffort} options={[...EFFORTS]} />}
        </FormField>
      )}
      <div className="row">
        <Button type="primary" disabled={!model.trim()} loading={busy} onClick={use}>
          {purpose === "offer" ? "Offer" : "Use"} {modelName(model)}
        </Button>
        <Button onClick={onDone}>Not now</Button>
      </div>
    </div>
  );
}
