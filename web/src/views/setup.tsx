// Set-up in three steps: the model, how careful agents are, and a first question. Each step saves at once.

import { Alert, Button, Radio, Skeleton, Steps } from "antd";
import { useEffect, useRef, useState } from "react";
import { RouteLink } from "../components/link";
import { navigate, newChat } from "../layout/router";
import { Markdown } from "../markdown/markdown";
import AddKey from "../setup/add-key";
import { useModelLoading } from "../setup/model-loading";
import { describeLastResort, modelName } from "../setup/models";
import { ModelChoices, useSetupStatus } from "../setup/setup-card";
import { useAppState, useClient, useQuery, useResourceReload } from "../state/hooks";
import { newId } from "../state/ids";
import { type SafetyLevel, safetyChanges } from "../state/permissions";
import type { AgentShape, PolicyResult } from "../wire";
import { QueryResult, View } from "./view";

const STEPS = [
  { id: "", title: "Model" },
  { id: "safety", title: "Safety" },
  { id: "try", title: "Try it" },
];

const LEVELS: { value: SafetyLevel; label: string; hint: string }[] = [
  {
    value: "ask",
    label: "Ask before running commands and changing files",
    hint: "Reading and searching work without asking.",
  },
  { value: "everything", label: "Ask for everything", hint: "Every tool call waits for your approval." },
  { value: "read-only", label: "Read only", hint: "Agents can read and search, but change nothing." },
];

export default function Setup({ id }: { id: string }) {
  const { principal } = useAppState();
  const at = Math.max(
    STEPS.findIndex((step) => step.id === id),
    0,
  );
  const admin = principal?.scopes.includes("admin") ?? true;
  const go = (step: number) => {
    const next = STEPS[step];
    navigate(next ? { view: "setup", id: next.id } : newChat());
  };
  return (
    <View title="Set up Atlas" description={`Step ${at + 1} of ${STEPS.length}. Each step is saved at once.`}>
      {admin ? (
        <div className="setup-wizard stack">
          <Steps size="small" current={at} items={STEPS.map(({ title }) => ({ title }))} responsive={false} />
          {at === 0 && <ModelStep />}
          {at === 1 && <SafetyStep />}
          {at === 2 && <TryStep />}
          <div className="row">
            {at > 0 && <Button onClick={() => go(at - 1)}>Back</Button>}
            <span className="spacer" />
            {at < 2 && (
              <Button type="text" onClick={() => go(at + 1)}>
                Skip
              </Button>
            )}
            <Button type="primary" onClick={() => go(at + 1)}>
              {at < 2 ? "Next" : "Finish"}
            </Button>
          </div>
        </div>
      ) : (
        <p>You can view this but not change it.</p>
      )}
    </View>
  );
}

function ModelStep() {
  const status = useSetupStatus();
  const [addingKey, setAddingKey] = useState(false);
  return (
    <section aria-label="Model">
      <QueryResult query={status} what="the models">
        {(data) => (
          <>
            <p role="status">
              You’re using {data.done ? `${modelName(data.current.title)}.` : describeLastResort(data.current)}
            </p>
            <div className="setup-choices">
              <ModelChoices status={data} onAddKey={() => setAddingKey(true)} onReady={status.reload} />
            </div>
          </>
        )}
      </QueryResult>
      {addingKey && <AddKey onClose={() => setAddingKey(false)} />}
    </section>
  );
}

function SafetyStep() {
  const policy = useQuery("policy.get", {});
  useResourceReload("policy", policy.reload);
  return (
    <section aria-label="Safety">
      <QueryResult query={policy} what="the permissions">
        {(data) => <SafetyChoice policy={data} onSaved={policy.reload} />}
      </QueryResult>
    </section>
  );
}

function SafetyChoice({ policy, onSaved }: { policy: PolicyResult; onSaved: () => void }) {
  const client = useClient();
  const [busy, setBusy] = useState<SafetyLevel>();
  const [error, setError] = useState("");
  const current = LEVELS.find(({ value }) => safetyChanges(value, policy).length === 0)?.value;
  const choose = (level: SafetyLevel) => {
    setBusy(level);
    setError("");
    const changes = safetyChanges(level, policy);
    client
      .request("policy.put", { changes, allowWider: true, expectedVersion: policy.version ?? null })
      .then(onSaved, (failure: Error) => setError(failure.message))
      .finally(() => setBusy(undefined));
  };
  return (
    <fieldset className="choices" disabled={busy !== undefined}>
      <legend>What may agents do without asking you?</legend>
      <Radio.Group value={busy ?? current} onChange={({ target }) => choose(target.value as SafetyLevel)}>
        {LEVELS.map(({ value, label, hint }) => (
          <Radio key={value} value={value}>
            {label}
            <span className="muted block">{hint}</span>
          </Radio>
        ))}
      </Radio.Group>
      {!current && !busy && <p className="muted">You have custom permissions. A choice here changes them.</p>}
      {error && <Alert type="error" showIcon role="alert" title={error} />}
      <p className="muted">
        Saved in {policy.file}. <RouteLink to={{ view: "settings", id: "permissions" }}>All permissions</RouteLink>
      </p>
    </fieldset>
  );
}

/** One question to the default agent. Nothing of it is stored. */
function TryStep() {
  const { agents } = useAppState();
  const agent = agents.find((each) => each.default) ?? agents[0];
  return (
    <section aria-label="Try it">
      {agent ? <Trial key={agent.model} agent={agent} /> : <Skeleton active title={false} />}
    </section>
  );
}

function Trial({ agent }: { agent: AgentShape }) {
  const client = useClient();
  const loading = useModelLoading(agent.model);
  const [text, setText] = useState("");
  const [state, setState] = useState<"idle" | "busy" | "done">("idle");
  const [error, setError] = useState("");
  const trial = useRef("");
  useEffect(() => {
    const listen = (event: { trialId: string; text: string; reset?: boolean }) => {
      if (event.trialId === trial.current) setText((before) => (event.reset ? "" : before + event.text));
    };
    client.trialListeners.add(listen);
    return () => {
      client.trialListeners.delete(listen);
    };
  }, [client]);
  const question = agent.tools.includes("current_time") ? "What time is it?" : "Write a short poem about rain";
  const ask = async () => {
    trial.current = newId();
    setState("busy");
    setText("");
    setError("");
    try {
      const { draft } = await client.request("agents.get", { agentId: agent.id });
      if (!draft) throw new Error("This agent cannot be tried here.");
      const answer = await client.request("agents.tryDraft", { draft, message: question, trialId: trial.current });
      setText(answer.text);
      setState("done");
    } catch (failure) {
      setError((failure as Error).message);
      setState("idle");
    }
  };
  return (
    <div className="stack">
      <p>
        Ask {agent.name || agent.id}, which uses {modelName(agent.model)}:
      </p>
      <div className="row">
        <Button loading={state === "busy"} onClick={() => void ask()}>
          {question}
        </Button>
      </div>
      {state === "busy" && loading && (
        <p className="muted">
          <span role="status">{loading.label}</span> <span aria-hidden>{loading.detail}</span>
        </p>
      )}
      {text && (
        <div className="setup-answer" role="log" aria-label="Answer">
          <Markdown text={text} streaming={state === "busy"} />
        </div>
      )}
      {state === "done" && (
        <p role="status" className="success">
          It works. You’re ready to go.
        </p>
      )}
      {error && (
        <Alert
          type="error"
          showIcon
          role="alert"
          title={error}
          action={<RouteLink to={{ view: "setup", id: "" }}>Choose another model</RouteLink>}
        />
      )}
    </div>
  );
}
