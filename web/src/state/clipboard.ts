// Copies text. Browsers offer the Clipboard API only over HTTPS and on this machine; elsewhere a selection is copied.

export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const selected = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (selected instanceof HTMLElement) selected.focus();
  if (!copied) throw new Error("Your browser does not allow this page to copy.");
}
