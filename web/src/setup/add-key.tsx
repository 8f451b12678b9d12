// Drawer that tests and stores the API key of a provider, then offers its models.

import { Button, Drawer, Input, Select } from "antd";
import { useState } from "react";
import { FormField } from "../components/form-field";
import { useClient, useQuery } from "../state/hooks";
import { EFFORTS, type EffortChoice, modelName, useSelectModel } from "./models";

interface Props {
  /** Provider to start with. */
  provider?: string;
  onClose: () => void;
}

const COMPATIBLE = "http";

export default function AddKey({ provider: initial = "anthropic", onClose }: Props) {
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
        <UseModel provider={provider} models={models} onDone={onClose} />
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

/** Second step: choose one of the provider's models. */
function UseModel({ provider, models, onDone }: { provider: string; models: string[]; onDone: () => void }) {
  const select = useSelectModel();
  const [model, setModel] = useState(models[0] ?? "");
  const [effort, setEffort] = useState<EffortChoice>("");
  const [busy, setBusy] = useState(false);
  const use = () => {
    setBusy(true);
    select(`${provider}/${model.trim()}`, effort).then(onDone, () => setBusy(false));
  };
  return (
    <div className="stack">
      <p role="status" className="success">
        {models.length
          ? `Key works. ${models.length} ${models.length === 1 ? "model" : "models"} available.`
          : "Saved."}
      </p>
      <FormField label="Model" hint="Used by all agents without a model of their own.">
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
      <FormField label="Effort">
        {({ id }) => <Select id={id} value={effort} onChange={setEffort} options={[...EFFORTS]} />}
      </FormField>
      <div className="row">
        <Button type="primary" disabled={!model.trim()} loading={busy} onClick={use}>
          Use {modelName(model)}
        </Button>
        <Button onClick={onDone}>Not now</Button>
      </div>
    </div>
  );
}
