// Downloads a whole session as Markdown or JSON.

import type { AtlasClient } from "../state/client";
import { isSynthetic } from "../state/conversation";
import { formatDateTime, formatToolName, formatValue } from "../state/format";
import { extractImages } from "../state/images";
import type { MessageShape } from "../wire";

const FORMATS = {
  markdown: { mediaType: "text/markdown", extension: "md" },
  json: { mediaType: "application/json", extension: "json" },
};
export type ExportFormat = keyof typeof FORMATS;

export async function exportSession(
  client: AtlasClient,
  key: string,
  label: string,
  format: ExportFormat,
): Promise<void> {
  const messages = await loadAllMessages(client, key);
  const text =
    format === "json" ? JSON.stringify({ sessionKey: key, label, messages }, null, 2) : toMarkdown(label, messages);
  const { mediaType, extension } = FORMATS[format];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: mediaType }));
  link.download = `${toFileName(label || key)}.${extension}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function sessionAsMarkdown(client: AtlasClient, key: string, label: string): Promise<string> {
  return toMarkdown(label, await loadAllMessages(client, key));
}

async function loadAllMessages(client: AtlasClient, key: string): Promise<MessageShape[]> {
  const messages: MessageShape[] = [];
  for (let before: number | undefined, more = true; more; before = messages[0]?.seq) {
    const page = await client.request("chat.history", { sessionKey: key, limit: 200, ...(before ? { before } : {}) });
    messages.unshift(...page.messages);
    more = page.hasMore && page.messages.length > 0;
  }
  return messages;
}

function toFileName(label: string): string {
  const name = label.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  return name.slice(0, 60) || "chat";
}

function toMarkdown(label: string, messages: readonly MessageShape[]): string {
  const blocks = [`# ${label || "Chat"}`];
  for (const message of messages.filter((each) => !isSynthetic(each))) {
    if (message.role === "user" || message.role === "assistant")
      blocks.push(`## ${message.role === "user" ? "You" : "Agent"}, ${formatDateTime(message.createdAt)}`);
    for (const part of message.parts) {
      if (part.type === "text") blocks.push(part.text);
      else if (part.type === "tool_call")
        blocks.push(fence(`${formatToolName(part.name)} ${formatValue(part.arguments)}`));
      else if (part.type === "tool_result")
        blocks.push(fence(`${part.status}: ${formatValue(extractImages(part.result).rest)}`));
      else if (part.type === "file") blocks.push(`(file: ${part.name})`);
      else if (part.type === "image") blocks.push("(image)");
    }
    if (message.refusal) blocks.push(message.refusal);
  }
  return `${blocks.join("\n\n")}\n`;
}

/** Put text in a code block whose fence is longer than any run of backticks inside. */
function fence(text: string): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const mark = "`".repeat(longest + 1);
  return `${mark}\n${text}\n${mark}`;
}
