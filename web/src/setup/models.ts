// Names, sizes and actions of models that several parts of the page share.

import { useCallback } from "react";
import { useFeedback } from "../components/feedback";
import { useClient } from "../state/hooks";
import type { CurrentModel, LocalModelShape, ModelsSelect, SetupStatus } from "../wire";

export const EFFORTS = [
  { value: "", label: "Auto" },
  { value: "low", label: "Low" },
  { value: "medium", label: "Medium" },
  { value: "high", label: "High" },
] as const;
export type EffortChoice = (typeof EFFORTS)[number]["value"];

/** Uses a model and an effort in the chat that is open. */
export type UseHere = (model: string, effort: string) => void;

/** The name of a model without its provider. */
export const modelName = (ref: string): string => ref.slice(ref.indexOf("/") + 1);

/** What a person uses before choosing a model, as the end of “You’re using …”. */
export const describeLastResort = ({ model, title }: CurrentModel): string =>
  model === "demo"
    ? `${title}, not a model. Pick one:`
    : `${title}, a tiny model for trying things out. Pick a better one:`;

/** The local models that are offered instead of the current one: all need the same command if it was not run yet. */
export const offeredLocalModels = ({ current, local = [] }: SetupStatus): LocalModelShape[] => {
  const others = local.filter(({ id }) => `local/${id}` !== current.model);
  return others.some(({ install }) => install) ? others.slice(0, 1) : others;
};

export const formatBytes = (bytes: number): string =>
  bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`;

/** Offer models in the picker of all chats, or offer them no longer. */
export function useOfferModels(): (models: string[], offered?: boolean) => Promise<void> {
  const client = useClient();
  const { message: toast } = useFeedback();
  return useCallback(
    async (models, offered = true) => {
      try {
        await client.request("models.offer", { models, offered });
      } catch (error) {
        toast.error((error as Error).message);
        throw error;
      }
    },
    [client, toast],
  );
}

/** Use a model for all agents without one of their own, and say so. */
export function useSelectModel(): (model: string, effort?: EffortChoice) => Promise<void> {
  const client = useClient();
  const { message: toast } = useFeedback();
  return useCallback(
    async (model, effort = "") => {
      const params: ModelsSelect = { model, ...(effort ? { effort } : {}) };
      try {
        const selected = await client.request("models.select", params);
        toast.success(`Now using ${modelName(selected.title)}`);
      } catch (error) {
        toast.error((error as Error).message);
        throw error;
      }
    },
    [client, toast],
  );
}
