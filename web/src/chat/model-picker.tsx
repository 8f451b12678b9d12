// Choice of the model and the effort of a session. The effort applies where the model supports it.

import { Select } from "antd";
import { useAppState } from "../state/hooks";

export interface ModelChoice {
  /** Empty: the agent's own model. */
  model: string;
  /** Empty: automatic. */
  effort: string;
}

export const EFFORTS = [
  { value: "", label: "Auto" },
  { value: "low", label: "Low" },
  { value: "medium", label: "Medium" },
  { value: "high", label: "High" },
];

interface Props {
  agentId: string;
  choice: ModelChoice;
  onChange: (choice: ModelChoice) => void;
}

export default function ModelPicker({ agentId, choice, onChange }: Props) {
  const { agents, models } = useAppState();
  const own = agents.find(({ id }) => id === agentId)?.model;
  const named = models.filter(({ id }) => id.includes("/"));
  const option = ({ id }: { id: string }) => ({ value: id, label: modelName(id), title: id });
  const groups = [
    { label: "Agent’s default", options: [{ value: "", label: own ? modelName(own) : "Default model", title: own }] },
    { label: "Available", options: named.filter((model) => model.available).map(option) },
    {
      label: "Needs a key",
      options: named.filter((model) => !model.available).map((model) => ({ ...option(model), disabled: true })),
    },
  ].filter(({ options }) => options.length > 0);
  return (
    <div className="model-picker">
      <label htmlFor="model-choice">Model</label>
      <Select
        id="model-choice"
        showSearch={{ optionFilterProp: "label" }}
        value={choice.model}
        onChange={(model) => onChange({ ...choice, model })}
        options={groups}
        popupMatchSelectWidth={false}
      />
      <label htmlFor="effort-choice">Effort</label>
      <Select
        id="effort-choice"
        value={choice.effort}
        onChange={(effort) => onChange({ ...choice, effort })}
        options={EFFORTS}
      />
      <p className="muted">For this chat. Effort applies where the model supports it.</p>
    </div>
  );
}

/** A model without its provider, as people call it. */
export function modelName(id: string): string {
  return id.slice(id.indexOf("/") + 1);
}
