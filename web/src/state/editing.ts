// Forms that edit something on the gateway: unsaved changes, conflicts with other people, and leaving the form.

import { useCallback, useEffect, useRef, useState } from "react";
import { RequestError } from "../net/connection";
import type { CurrentValue, ResourceUpdated } from "../wire";
import { formatValue } from "./format";
import { useClient } from "./hooks";

/** The version of an editable resource, and its last change. */
export type EditStamp = Omit<CurrentValue, "value">;

/** A value with the version that was read. A new value has no version. */
export interface Editable<T> extends EditStamp {
  value: T;
}

/** Someone else changed or removed (`value` is null) what is being edited. */
export interface EditConflict<T> extends EditStamp {
  value: T | null;
}

export interface EditForm<T> {
  value: T;
  /** The value that was read last, to compare with. */
  saved: T;
  version: string | null;
  dirty: boolean;
  busy: boolean;
  error: string;
  conflict: EditConflict<T> | undefined;
  change: (part: Partial<T>) => void;
  /** Set the whole value. */
  replace: (value: T) => void;
  /** Save. The result is undefined if it failed or someone else was faster. */
  save: () => Promise<Editable<T> | undefined>;
  /** Save although someone else changed it. */
  overwrite: () => Promise<Editable<T> | undefined>;
  /** Drop the unsaved changes and show what is stored now. */
  discard: () => void;
}

interface Options<T> {
  kind: string;
  id: string;
  initial: Editable<T>;
  /** Write the value; the promise rejects with the gateway's error. */
  write: (value: T, expectedVersion: string | null) => Promise<Editable<T>>;
  /** Read the value that is stored now; null if it was removed. */
  load: () => Promise<Editable<T> | null>;
  /** Convert the value of a conflict. */
  read: (value: unknown) => T;
}

/** State of a form. It follows changes by others while it has no unsaved ones, and reports a conflict otherwise. */
export function useEditForm<T extends object>({ kind, id, initial, write, load, read }: Options<T>): EditForm<T> {
  const client = useClient();
  const [base, setBase] = useState(initial);
  const [value, setValue] = useState(initial.value);
  const [conflict, setConflict] = useState<EditConflict<T>>();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const dirty = !isSameValue(value, base.value);
  const saving = useRef(false);

  const reset = useCallback((next: Editable<T>) => {
    setBase(next);
    setValue(next.value);
    setConflict(undefined);
    setError("");
  }, []);

  const follow = useRef((_: ResourceUpdated) => {});
  follow.current = ({ version, by }) => {
    if (saving.current || version === (base.version ?? null)) return;
    load().then(
      (current) => {
        if (current && !dirty) reset(current);
        else if (current?.version !== base.version)
          setConflict(current ?? { version: null, changedBy: by ?? "", changedAt: Date.now(), value: null });
      },
      () => {}, // saving reports the conflict
    );
  };
  useEffect(() => {
    const listen = (event: ResourceUpdated) => event.kind === kind && event.id === id && follow.current(event);
    client.resourceListeners.add(listen);
    return () => {
      client.resourceListeners.delete(listen);
    };
  }, [client, kind, id]);

  const submit = async (expectedVersion: string | null): Promise<Editable<T> | undefined> => {
    saving.current = true;
    setBusy(true);
    setError("");
    try {
      const saved = await write(value, expectedVersion);
      reset(saved);
      return saved;
    } catch (failure) {
      const current = failure instanceof RequestError ? failure.current : undefined;
      if (current) setConflict(toConflict(current, read));
      else setError((failure as Error).message);
      return undefined;
    } finally {
      saving.current = false;
      setBusy(false);
    }
  };

  return {
    value,
    saved: base.value,
    version: base.version ?? null,
    dirty,
    busy,
    error,
    conflict,
    change: (part) => {
      setValue((previous) => ({ ...previous, ...part }));
      setError("");
    },
    replace: (next) => {
      setValue(next);
      setError("");
    },
    save: () => submit(base.version ?? null),
    overwrite: () => submit(conflict?.version ?? null),
    discard: () => {
      if (conflict?.value) reset({ ...conflict, value: conflict.value });
      else reset(base);
    },
  };
}

function toConflict<T>(current: CurrentValue, read: (value: unknown) => T): EditConflict<T> {
  const missing = current.value === null || current.value === undefined;
  return { ...current, value: missing ? null : read(current.value) };
}

/** Return whether two values are the same, whatever the order of their keys. */
export function isSameValue(left: unknown, right: unknown): boolean {
  if (left === right) return true;
  if (typeof left !== "object" || typeof right !== "object" || !left || !right) return false;
  if (Array.isArray(left) !== Array.isArray(right)) return false;
  const [mine, others] = [left as Record<string, unknown>, right as Record<string, unknown>];
  const keys = new Set([...Object.keys(mine), ...Object.keys(others)]);
  return [...keys].every((key) => isSameValue(mine[key], others[key]));
}

export interface FieldDifference {
  field: string;
  theirs: string;
  yours: string;
}

/** List the fields in which two values differ, as texts. */
export function listDifferences<T extends object>(theirs: T, yours: T): FieldDifference[] {
  const fields = Object.keys({ ...theirs, ...yours }) as (keyof T & string)[];
  return fields
    .filter((field) => !isSameValue(theirs[field], yours[field]))
    .map((field) => ({ field, theirs: formatField(theirs[field]), yours: formatField(yours[field]) }));
}

function formatField(value: unknown): string {
  if (value === undefined || value === null || value === "") return "–";
  if (Array.isArray(value) && value.every((item) => typeof item === "string")) return value.join(", ") || "–";
  return formatValue(value);
}
