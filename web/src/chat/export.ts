// A whole session as a file: for reading, or for programs.

import type { Atlas } from "../state/atlas";
import { parted } from "../state/pictures";
import { isOwn } from "../state/turns";
import { momentOf, textOf } from "../state/words";
import type { MessageShape } from "../wire";

export async function exportSession(
  atlas: Atlas,
  key: string,
  label: string,
  form: "markdown" | "json",
): Promise<void> {
  const messages: MessageShape[] = [];
  for (let before: number | undefined, more = true; more; before = messages[0]?.seq) {
    const page = await atlas.ask("chat.history", { sessionKey: key, limit: 200, ...(before ? { before } : {}) });
    messages.unshift(...page.messages);
    more = page.hasMore && page.messages.length > 0;
  }
  const text =
    form === "json" ? JSON.stringify({ sessionKey: key, label, messages }, null, 2) : markdownOf(label, messages);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: form === "json" ? "application/json" : "text/markdown" }));
  link.download = `${fileName(label || key)}.${form === "json" ? "json" : "md"}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(label: string): string {
  return (
    label
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 60) || "session"
  );
}

export function markdownOf(label: string, messages: readonly MessageShape[]): string {
  const lines = [`# ${label || "Session"}`];
  for (const message of messages.filter((each) => !isOwn(each))) {
    if (message.role === "user" || message.role === "assistant")
      lines.push(`## ${message.role === "user" ? "You" : "Agent"}, ${momentOf(message.createdAt)}`);
    for (const part of message.parts) {
      if (part.type === "text") lines.push(part.text);
      else if (part.type === "tool_call") lines.push(fenced(`${part.name} ${textOf(part.arguments)}`));
      else if (part.type === "tool_result") lines.push(fenced(`${part.status}: ${textOf(parted(part.result).rest)}`));
      else if (part.type === "file") lines.push(`(file: ${part.name})`);
      else if (part.type === "image") lines.push("(picture)");
    }
  }
  return `${lines.join("\n\n")}\n`;
}

function fenced(text: string): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((each) => each.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
