import { expect, it } from "vitest";
import { describeSpeaker } from "../components/speaker";
import { describeLastResort, offeredLocalModels } from "../setup/models";
import type { LocalModelShape } from "../wire";
import { parseRoute, routePath, VIEWS } from "./router";
import { groupByDay } from "./session-list";

it("every route has a path that parses to the same route", () => {
  for (const view of VIEWS)
    for (const id of ["", "a/b ?#"]) expect(parseRoute(routePath({ view, id }))).toEqual({ view, id });
  expect(parseRoute("/c/%E0%A4%A")).toEqual({ view: "chat", id: "%E0%A4%A" });
});

it("an unknown path is a missing page and keeps its address", () => {
  for (const path of ["/nowhere", "/nowhere/%E0%A4%A", "/c", "/jobs/1/2", "/activity/other/1"]) {
    expect(parseRoute(path)).toEqual({ view: "missing", id: path });
    expect(routePath(parseRoute(path))).toBe(path);
  }
});

it("sessions are grouped by day", () => {
  const now = new Date(2026, 5, 15, 12);
  const updatedOn = (day: number, month = 5) => ({
    sessionKey: `${month}.${day}`,
    label: "",
    agentId: "",
    archived: false,
    running: false,
    createdAt: 0,
    updatedAt: new Date(2026, month, day, 9).getTime(),
  });
  const sessions = [updatedOn(15), updatedOn(14), updatedOn(10), updatedOn(20, 4), updatedOn(1, 0)];
  expect(groupByDay(sessions, now).map(({ name }) => name)).toEqual([
    "Today",
    "Yesterday",
    "Previous 7 days",
    "Previous 30 days",
    "Older",
  ]);
});

it("a base installation offers the one command that adds local models", () => {
  const model = (id: string, install = ""): LocalModelShape => ({
    id,
    title: id,
    label: "",
    size: 1,
    state: "missing",
    install,
  });
  const current = { agentId: "assistant", model: "demo", title: "a scripted demo" };
  const offered = (local: LocalModelShape[]) => offeredLocalModels({ done: false, current, local }).map(({ id }) => id);
  expect(offered([model("tiny", "pip install x"), model("big", "pip install x")])).toEqual(["tiny"]);
  expect(offered([model("tiny"), model("big")])).toEqual(["tiny", "big"]);
  expect(describeLastResort(current)).toBe("a scripted demo, not a model. Pick one:");
});

it("an answer that begins has the colour that its agent keeps", () => {
  const agents = [{ id: "poet" }, { id: "assistant", default: true }] as Parameters<typeof describeSpeaker>[1];
  expect(describeSpeaker("", agents)).toEqual(describeSpeaker("assistant", agents));
  expect(describeSpeaker("gone", agents)).toEqual({ id: "gone", name: "gone" });
  expect(describeSpeaker("", [])).toEqual({ id: "", name: "Agent" });
});
