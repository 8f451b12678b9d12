// Preferences of this browser: appearance, keyboard and notifications. They are stored in the browser only.

import { useSyncExternalStore } from "react";
import { Store } from "./store";

export const THEME_MODES = ["system", "light", "dark"] as const;
export type ThemeMode = (typeof THEME_MODES)[number];
export const THEME_NAMES: Record<ThemeMode, string> = { system: "System", light: "Light", dark: "Dark" };

export interface Preferences {
  theme: ThemeMode;
  density: "comfortable" | "compact";
  /** Whether shortcuts of a single key, such as `?` and `y`, are active. */
  singleKeys: boolean;
  notifyApprovals: boolean;
  notifyAnswers: boolean;
  notifyJobs: boolean;
}

const STORAGE_KEY = "atlas.preferences";
const DEFAULTS: Preferences = {
  theme: "system",
  density: "comfortable",
  singleKeys: true,
  notifyApprovals: false,
  notifyAnswers: false,
  notifyJobs: false,
};

/** Combine stored preferences with the defaults; values of a wrong type are ignored. */
function parsePreferences(stored: string | null): Preferences {
  const found: Record<string, unknown> = {};
  try {
    Object.assign(found, JSON.parse(stored ?? "{}"));
  } catch {
    // an unreadable value counts as none
  }
  const flag = (name: "singleKeys" | "notifyApprovals" | "notifyAnswers" | "notifyJobs") =>
    typeof found[name] === "boolean" ? found[name] : DEFAULTS[name];
  return {
    theme: THEME_MODES.find((mode) => mode === found.theme) ?? DEFAULTS.theme,
    density: found.density === "compact" ? "compact" : "comfortable",
    singleKeys: flag("singleKeys"),
    notifyApprovals: flag("notifyApprovals"),
    notifyAnswers: flag("notifyAnswers"),
    notifyJobs: flag("notifyJobs"),
  };
}

function loadPreferences(): Preferences {
  if (typeof localStorage === "undefined") return DEFAULTS;
  return parsePreferences(localStorage.getItem(STORAGE_KEY));
}

const preferences = new Store<Preferences>(loadPreferences(), 0);

/** The current preferences, outside of components. */
export const currentPreferences = (): Preferences => preferences.current;

export function updatePreferences(change: Partial<Preferences>): void {
  preferences.update(change);
  preferences.flush();
  localStorage.setItem(STORAGE_KEY, JSON.stringify(preferences.current));
}

if (typeof window !== "undefined")
  window.addEventListener("storage", ({ key }) => {
    if (key === STORAGE_KEY) preferences.set(loadPreferences()); // another tab has changed them
  });

export function usePreferences(): Preferences {
  return useSyncExternalStore(preferences.subscribe, preferences.snapshot);
}
