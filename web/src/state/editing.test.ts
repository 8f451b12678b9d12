import { expect, test } from "vitest";
import { toEntry, toForm } from "../views/settings-mcp";
import type { McpEntryShape } from "../wire";
import { isSameValue, listDifferences } from "./editing";
import { formatAgo } from "./format";

test("values are the same whatever the order of their keys", () => {
  expect(isSameValue({ a: 1, b: ["x", "y"] }, { b: ["x", "y"], a: 1 })).toBe(true);
  expect(isSameValue({ a: ["x"] }, { a: ["x", "y"] })).toBe(false);
  expect(isSameValue({ a: ["x"] }, { a: { 0: "x" } })).toBe(false);
  expect(isSameValue({ a: undefined }, {})).toBe(true);
  expect(isSameValue(null, {})).toBe(false);
});

test("only the fields that differ are listed", () => {
  const theirs = { name: "Archy", tools: ["a"], model: "" };
  expect(listDifferences(theirs, { name: "Archy", tools: ["a", "b"], model: "x/y" })).toEqual([
    { field: "tools", theirs: "a", yours: "a, b" },
    { field: "model", theirs: "–", yours: "x/y" },
  ]);
});

test("the time of a change is shown in words", () => {
  expect(formatAgo(1_000, 3_000)).toBe("just now");
  expect(formatAgo(0, 60_000)).toBe("1 minute ago");
  expect(formatAgo(0, 7_200_000)).toBe("2 hours ago");
});

test("a saved MCP server keeps the fields that were not edited", () => {
  const common = { description: "Stock.", confirm: false, disabled: true };
  const command: McpEntryShape = {
    ...common,
    command: "npx",
    args: ["-y", "stock"],
    env: { API_KEY: "••••" },
    network: true,
    folders: { "/data": "read", "/out": "write" },
  };
  expect(toEntry(toForm("stock", command))).toEqual(command);
  const args = ["--greeting", "", "  indented", "first\nsecond\r\n", '"quoted"', '"half', "\\n", "C:\\new"];
  expect(toEntry(toForm("stock", { ...command, args }))).toEqual({ ...command, args });
  const oauth = { clientId: "atlas", clientSecret: "••••", callbackPort: 8123 };
  const url: McpEntryShape = { ...common, url: "https://a.example/mcp", headers: { "X-Team": "••••" }, oauth };
  expect(toEntry(toForm("tracker", url))).toEqual(url);
});

test("arguments of an MCP server are written as one per line, and quotes keep spaces, line breaks and nothing", () => {
  const form = toForm("stock", { command: "npx", args: ["-y", "a b", "", "x\ny"] });
  expect(form.args).toBe('-y\na b\n""\n"x\\ny"');
  expect(toEntry({ ...form, args: '  -y \n\n"a b"\n""\n"half' }).args).toEqual(["-y", "a b", "", '"half']);
});
