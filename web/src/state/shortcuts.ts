// Shortcuts of a single key.

import { currentPreferences } from "./preferences";

/** Return the key of a single-key shortcut; empty in a field, with a modifier, on repeat, or if they are off. */
export function singleKey(event: KeyboardEvent): string {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return "";
  if (event.defaultPrevented || !currentPreferences().singleKeys) return "";
  const target = event.target instanceof Element ? event.target : null;
  if (target?.closest("input:not([type=checkbox]), textarea, select, [contenteditable], [role=menu], [role=dialog]"))
    return "";
  return event.key.toLowerCase();
}
