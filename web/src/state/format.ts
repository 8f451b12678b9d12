// Formatting of times, durations, numbers and values.

import { toSafeLine } from "./unicode-safety";

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dateFormat = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const dateTimeFormat = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

export const formatTime = (at: number): string => timeFormat.format(at);
export const formatDateTime = (at: number): string => dateTimeFormat.format(at);

/** Format a time as hours and minutes if it is today, otherwise as a date. */
export function formatTimeOrDate(at: number, now = Date.now()): string {
  const today = new Date(at).toDateString() === new Date(now).toDateString();
  return (today ? timeFormat : dateFormat).format(at);
}

export function formatDuration(milliseconds: number): string {
  if (milliseconds < 1) return "< 1 ms";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Format the time that is left as minutes and seconds. */
export function formatCountdown(milliseconds: number): string {
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}

/** Format a time relative to now, in whole seconds, minutes, hours or days. */
export function formatRelativeTime(at: number, now: number): string {
  const distance = Math.abs(at - now);
  const [unit, size] =
    distance < 60_000
      ? ["s", 1000]
      : distance < 3_600_000
        ? ["min", 60_000]
        : distance < 172_800_000
          ? ["h", 3_600_000]
          : ["days", 86_400_000];
  const amount = `${Math.floor(distance / Number(size))} ${unit}`;
  return at > now ? `in ${amount}` : `${amount} ago`;
}

/** Format how long ago something happened, in words: "2 minutes ago". */
export function formatAgo(at: number, now: number): string {
  const seconds = Math.max(0, Math.floor((now - at) / 1000));
  if (seconds < 5) return "just now";
  const [amount, unit] =
    seconds < 60
      ? [seconds, "second"]
      : seconds < 3600
        ? [Math.floor(seconds / 60), "minute"]
        : seconds < 172_800
          ? [Math.floor(seconds / 3600), "hour"]
          : [Math.floor(seconds / 86_400), "day"];
  return `${amount} ${unit}${amount === 1 ? "" : "s"} ago`;
}

export function formatCount(count: number): string {
  if (count < 1000) return String(count);
  if (count < 100_000) return `${(count / 1000).toFixed(1).replace(/\.0$/, "")}k`;
  return count < 1_000_000 ? `${Math.round(count / 1000)}k` : `${(count / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  const [size, unit] = bytes < 1e6 ? [bytes / 1e3, "KB"] : bytes < 1e9 ? [bytes / 1e6, "MB"] : [bytes / 1e9, "GB"];
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${unit}`;
}

export function formatCost(dollars: number): string {
  if (dollars === 0) return "$0";
  return dollars < 0.01 ? `$${dollars.toFixed(4)}` : `$${dollars.toFixed(2)}`;
}

/** Turn an identifier such as `not_found` into a label. */
export function formatIdentifier(identifier: string): string {
  const words = identifier.replace(/[_-]/g, " ").replace(/^mcp\b/, "MCP");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The name of a tool as people read it: models know the tool `create_issue` of `github` as `github__create_issue`. */
export function formatToolName(name: string): string {
  return name.includes("/") ? name : name.replace(/(?<=[^_])__(?=[^_])/, "/");
}

/** Capitalise a message of the gateway, unless it starts with a name such as a host or an identifier. */
export function toSentence(message: string): string {
  return /^[a-z]+(?:[\s,:;]|$)/.test(message) ? message.charAt(0).toUpperCase() + message.slice(1) : message;
}

export function formatValue(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}

/** Summarise the arguments of a tool call in one line. */
export function summarizeArguments(values: Record<string, unknown>): string {
  const entries = Object.entries(values);
  const only = entries[0];
  if (entries.length === 1 && only && typeof only[1] === "string") return toSafeLine(only[1]);
  const pairs = entries.map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return toSafeLine(pairs.join(", "));
}
